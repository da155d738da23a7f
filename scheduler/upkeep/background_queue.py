"""Queues of work, such as messages to send, for separate threads, so that no long step delays it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from records.storage.database import StorageError

Key = TypeVar("Key")


class BackgroundQueue(Generic[Key]):
    """The queue of one scheduler. Several schedulers may work on the same keys at the same time.

    `work` is called in one of `threads` threads. If it raises, `log` gets the text `retried`, which holds one
    %s for the key. A later sweep starts the key again.
    """

    def __init__(
        self,
        name: str,
        work: Callable[[Key], None],
        *,
        threads: int,
        max_waiting: int,
        log: logging.Logger,
        retried: str,
    ) -> None:
        self._work = work
        self._max_waiting = max_waiting
        self._log, self._retried = log, retried
        self._threads = ThreadPoolExecutor(threads, name)
        self._lock = threading.Lock()
        self._is_stopping = False
        self._waiting: set[Key] = set()
        # The keys that are being worked on, and whether each was started again since.
        self._restarted: dict[Key, bool] = {}

    def start(self, key: Key) -> None:
        """Queue a key for a thread, unless it is already queued or too many wait. A key that is being worked
        on is queued afterwards, because its work may have changed since it began.
        """
        with self._lock:
            if key in self._restarted:
                self._restarted[key] = True
                return
            if key in self._waiting or len(self._waiting) >= self._max_waiting:
                return
            self._waiting.add(key)
        self._threads.submit(self._attempt, key)

    def stop(self) -> None:
        """Wait for the keys that are being worked on, and drop the others."""
        self._is_stopping = True
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _attempt(self, key: Key) -> None:
        with self._lock:
            self._waiting.discard(key)
            self._restarted[key] = False
        try:
            self._work(key)
        except StorageError as error:
            self._log.error(f"{self._retried}: %s", key, error)
        except Exception:
            self._log.exception(self._retried, key)
        finally:
            with self._lock:
                is_restarted = self._restarted.pop(key)
            if is_restarted and not self._is_stopping:
                self.start(key)
