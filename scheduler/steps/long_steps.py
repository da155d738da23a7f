"""Import and publish models from separate threads. Both steps wait for the compiler's processes, for minutes
if the model is large, and no other job's devices may wait for that.
"""

from __future__ import annotations

import logging
from copy import copy
from functools import partial

from scheduler.context import Context
from scheduler.steps import drive
from scheduler.upkeep.background_queue import BackgroundQueue

LONG_STEPS = ("intake", "publish")
# Jobs that wait for a step's thread. A later sweep wakes the others.
MAX_WAITING = 100

log = logging.getLogger(__name__)


class LongStep(BackgroundQueue[str]):
    """Runs the step `name` of jobs, by their ids, one at a time."""

    def __init__(self, context: Context, name: str) -> None:
        own = copy(context)
        # Each thread claims jobs under a name of its own, so that none releases another's claim.
        own.scheduler_name = f"{context.scheduler_name}, {name}"
        super().__init__(
            name,
            partial(drive.drive, own, name),
            threads=1,
            max_waiting=MAX_WAITING,
            log=log,
            retried=f"the step {name} of job %s will be tried again",
        )
