"""Run the operator's command that power-cycles a device whose worker is lost."""

from __future__ import annotations

import logging
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from core.worker import DesiredState, Role
from records.fleet import workers
from records.fleet.workers import WorkerInfo
from records.storage.database import Database

# A worker may be silent for this long while its machine restarts by itself, or after a reset.
PATIENCE_S = 600.0
MAX_RESETS = 3
TIMEOUT_S = 60.0

log = logging.getLogger(__name__)


class DeviceReset:
    """Resets lost devices by a command, one at a time. Set the command for one scheduler only.

    A device is reset up to MAX_RESETS times, PATIENCE_S apart, until its worker calls again. The first reset
    comes PATIENCE_S after this process found it lost: while the service was stopped, no worker could call.
    """

    def __init__(self, command: str | None, timer: Callable[[], float] = time.monotonic) -> None:
        self._command = shlex.split(command or "")
        self._timer = timer
        # By lost worker: the time when it was found lost, and the times of its resets.
        self._lost: dict[str, list[float]] = {}
        self._running: threading.Thread | None = None

    def check(self, database: Database, now: float) -> None:
        """Reset the device that has been lost for the longest time, if one is due. Raises StorageError."""
        if not self._command or (self._running is not None and self._running.is_alive()):
            return
        with database.reading() as session:
            due = [worker for worker in workers.list_workers(session) if self._is_due(worker, now)]
        if due:
            worker = min(due, key=lambda one: one.last_seen_at)
            self._lost[worker.id].append(self._timer())
            self._running = threading.Thread(target=self._reset, args=(worker.id,), name="reset", daemon=True)
            self._running.start()

    def _is_due(self, worker: WorkerInfo, now: float) -> bool:
        is_expected = worker.desired_state is DesiredState.WORK and worker.role is Role.MEASURE
        # The name becomes an argument of the command, which could take it for an option.
        if not is_expected or not worker.is_lost(now) or worker.id.startswith("-"):
            self._lost.pop(worker.id, None)
            return False
        times = self._lost.setdefault(worker.id, [self._timer()])
        return len(times) <= MAX_RESETS and self._timer() - times[-1] >= PATIENCE_S

    def _reset(self, worker_id: str) -> None:
        log.warning("worker %s is lost: resetting its device", worker_id)
        failure = run([*self._command, worker_id])
        if failure:
            log.error("the device of worker %s was not reset: %s", worker_id, failure)


def run(command: Sequence[str], timeout_s: float = TIMEOUT_S) -> str:
    """Run a command. Return why it failed, "" if it didn't."""
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )
    except subprocess.TimeoutExpired:
        return f"{command[0]} took longer than {timeout_s:g} s"
    except OSError as error:
        return f"{command[0]} can't be run ({error.strerror})"
    said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    return f"{command[0]} ended with exit code {done.returncode}: {said}" if done.returncode else ""
