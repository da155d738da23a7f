"""Import models from a separate thread. An import waits for the compiler's processes, for minutes if the
model is large, and no other job's devices may wait for that.
"""

from __future__ import annotations

import logging
from copy import copy
from functools import partial

from scheduler.context import Context
from scheduler.steps import drive
from scheduler.upkeep.background_queue import BackgroundQueue

# Jobs that wait for the thread. A later sweep wakes the others.
MAX_WAITING = 100

log = logging.getLogger(__name__)


class Importer(BackgroundQueue[str]):
    """Runs the first step of jobs, by their ids, one at a time."""

    def __init__(self, context: Context) -> None:
        own = copy(context)
        # The main thread claims jobs under its own name, so neither releases the other's claim.
        own.scheduler_name = f"{context.scheduler_name}, imports"
        super().__init__(
            "imports",
            partial(drive.drive, own, "intake"),
            threads=1,
            max_waiting=MAX_WAITING,
            log=log,
            retried="job %s will be imported again",
        )
