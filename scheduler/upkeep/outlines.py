"""Read the outlines of models from a separate thread, so that no long step delays them."""

from __future__ import annotations

import logging
from functools import partial

from compiler.importing.spec import ModelError
from records.jobs import outlines
from scheduler.context import Context
from scheduler.errors import PermanentError
from scheduler.model_compiler import MODEL_GONE
from scheduler.upkeep.background_queue import BackgroundQueue

# Models that wait for the thread. A later sweep finds the others.
MAX_WAITING = 20

log = logging.getLogger(__name__)


class OutlineReader(BackgroundQueue[str]):
    """Reads outlines of models, by their SHA-256, one at a time."""

    def __init__(self, context: Context) -> None:
        self._context = context
        super().__init__(
            "outlines",
            partial(read, context),
            threads=1,
            max_waiting=MAX_WAITING,
            log=log,
            retried="the outline of model %s will be read again",
        )

    def start_waiting(self) -> None:
        """Queue the models whose outline is still to be read. Raises StorageError."""
        with self._context.database.reading() as session:
            waiting = outlines.waiting(session, MAX_WAITING)
        for sha in waiting:
            self.start(sha)


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
