"""Read the outlines of models from a separate thread, so that no long step delays them."""

from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor

from compiler.importing.spec import ModelError
from records.jobs import outlines
from records.storage.database import StorageError
from scheduler.context import Context
from scheduler.errors import PermanentError
from scheduler.model_compiler import MODEL_GONE

# Models that wait for the thread. A later sweep finds the others.
MAX_WAITING = 20

log = logging.getLogger(__name__)


class OutlineReader:
    """Reads outlines for one scheduler, one at a time. Several schedulers may read at the same time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._thread = ThreadPoolExecutor(1, "outlines")
        self._lock = threading.Lock()
        self._taken: set[str] = set()

    def start(self, sha: str) -> None:
        """Queue a model for the thread, unless it is already queued or too many wait."""
        with self._lock:
            if sha in self._taken or len(self._taken) >= MAX_WAITING:
                return
            self._taken.add(sha)
        self._thread.submit(self._attempt, sha)

    def start_waiting(self) -> None:
        """Queue the models whose outline is still to be read. Raises StorageError."""
        with self._context.database.reading() as session:
            waiting = outlines.waiting(session, MAX_WAITING)
        for sha in waiting:
            self.start(sha)

    def stop(self) -> None:
        """Wait for the current model, and drop the others."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _attempt(self, sha: str) -> None:
        try:
            read(self._context, sha)
        except StorageError as error:
            log.error("the outline of model %s will be read again: %s", sha, error)
        except Exception:
            log.exception("the outline of model %s will be read again", sha)
        finally:
            with self._lock:
                self._taken.discard(sha)


def read(context: Context, sha: str) -> None:
    """Read a model's outline if that is due, and store it or the reason why there is none. Raises
    StorageError."""
    with context.database.begin() as session:
        is_due = outlines.begin_attempt(session, sha, context.now())
    if not is_due:
        return
    try:
        with context.model_compiler.stored(sha, MODEL_GONE) as file:
            found = context.children.outline_model(file)
    except (ModelError, PermanentError) as error:
        with context.database.begin() as session:
            outlines.put(session, sha, str(error))
    else:
        with context.database.begin() as session:
            outlines.put(session, sha, found)
