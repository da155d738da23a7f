"""A message broker in a folder: it needs no server, and messages survive a restart.

It is kombu's filesystem transport without two faults. kombu writes a message under its final name, so a
reader may find it half written. And it moves a message through the system's temporary folder, so the message
is lost if that folder is full or on another file system.
"""

from __future__ import annotations

import json
import logging
import time
import uuid
from pathlib import Path
from queue import Empty
from typing import Any

from kombu.exceptions import ChannelError
from kombu.transport import filesystem

log = logging.getLogger(__name__)

MAX_DRAIN_S = 0.2


class Channel(filesystem.Channel):
    """Messages are files. Each appears complete, and belongs to the reader that removes it."""

    # kombu's own classes disagree on the name of the second argument.
    def _put(self, queue: str, payload: dict[str, Any], **kwargs: Any) -> None:  # type: ignore[override]
        path = Path(self.data_folder_out, f"{time.time_ns():020}_{uuid.uuid4()}.{queue}.msg")
        part = path.with_suffix(".part")
        try:
            part.write_text(json.dumps(payload))
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise ChannelError(f"cannot write a message to {path.parent}: {error.strerror}") from error

    def _get(self, queue: str, timeout: float | None = None) -> dict[str, Any]:
        for path in sorted(Path(self.data_folder_in).glob(f"*.{queue}.msg")):
            message = _take(path)
            if message is not None:
                return message
        raise Empty


class Transport(filesystem.Transport):
    Channel = Channel

    def drain_events(self, connection: Any, timeout: float | None = None, **_: Any) -> None:
        # Celery checks between two calls whether to stop, and allows each call two seconds.
        timeout_s = min(timeout or MAX_DRAIN_S, MAX_DRAIN_S)
        super().drain_events(connection, timeout=timeout_s)  # type: ignore[no-untyped-call]


def _take(path: Path) -> dict[str, Any] | None:
    """Remove a message and return it; None if another reader was faster or the message is damaged. The next
    sweep replaces a damaged one.
    """
    try:
        text = path.read_text()
        path.unlink()
        message = json.loads(text)
    except FileNotFoundError:
        return None
    except ValueError as error:
        log.warning("dropped the damaged message %s: %s", path.name, error)
        return None
    return message if isinstance(message, dict) else None
