"""Logging: lines for people, or JSON with the ids of the job, lease, trial and worker of each line."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from core.plain_text import without_controls

VARIABLE = "TUNEFARM_LOG_FORMAT"
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_about: ContextVar[dict[str, str]] = ContextVar("about", default={})  # noqa: B039 - it is never changed


def configure(level: int) -> None:
    """Log to standard error, as JSON if the variable TUNEFARM_LOG_FORMAT is "json"."""
    handler = logging.StreamHandler()
    is_json = os.environ.get(VARIABLE, "").lower() == "json"
    handler.setFormatter(JsonFormatter() if is_json else TextFormatter(_TEXT))
    logging.basicConfig(level=level, handlers=[handler])


@contextlib.contextmanager
def about(**ids: str | int | None) -> Iterator[None]:
    """Add ids to the lines that are logged in this context, and in tasks and threads that asyncio starts
    there.

    Ids that are None are left out.
    """
    known = {name: str(value) for name, value in ids.items() if value is not None}
    token = _about.set(_about.get() | known)
    try:
        yield
    finally:
        _about.reset(token)


class TextFormatter(logging.Formatter):
    """Formats lines for people. Further lines of a message are indented, so that a message can't fake a log
    line."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging calls it
        return without_controls(super().formatMessage(record)).replace("\n", "\n    ")


class JsonFormatter(logging.Formatter):
    """Formats one JSON object a line: at, level, logger, message, error (its traceback), and the ids of
    `about`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line | _about.get(), ensure_ascii=False)
