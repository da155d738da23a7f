"""One run of a scenario on a rig: a job, its workers, and their state in the database."""

from __future__ import annotations

import functools
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sqlalchemy import func, select

from compiler.packaging.artifact import unpack
from core.job import Build
from core.measurement import Outcome
from core.worker import WorkerState
from records.fleet import workers
from records.fleet.workers import WorkerInfo
from records.jobs import events, jobs, tasks, trials
from records.jobs.jobs import Job
from records.jobs.trials import Trial
from records.storage import blobs
from records.storage.tables import JobRow
from tests.faults.rig import PATIENCE_S, Program, Rig
from tests.faults.runner import VARIABLE, Faults, digest
from tests.integration.worker.executors import is_unlocked

TRIALS = 16
_MEMORY_BYTES = 128 << 20
_RUN_LIMIT_S = 3.0


@dataclass(frozen=True)
class Ledger:
    """Errors in a job's trials, from the database. `lost` trials were issued but have no result. `twice` is
    how much a counter exceeds the table's number of trials. `wrong` schedules were published without a
    verifying trial. `given_up` trials took devices down.
    """

    state: str
    lost: int
    twice: int
    wrong: int
    given_up: int


class JobRun:
    """A job and its workers. Their own device class separates them from other runs on the rig."""

    def __init__(self, rig: Rig) -> None:
        rig.runs += 1
        self.rig = rig
        self.name = f"run{rig.runs}-{uuid.uuid4().hex[:6]}"
        self.notes = rig.folder / "notes" / self.name
        self.notes.mkdir(parents=True)
        self.notes.chmod(0o777)
        self.faults = Faults(str(self.notes), self.name)
        self.programs: list[Program] = []
        self.job_id = ""

    def submit(self, trials: int = TRIALS, build: Build = Build.AUTO) -> None:
        """Submit the job for this run's device class, which a worker has registered."""
        with self.rig.http() as http:
            sha = http.post("/v1/models", content=product(64)).raise_for_status().json()["sha256"]
            body = {"model": sha, "trials": trials, "target": self.faults.device.key, "build": build}
            self.job_id = str(http.post("/v1/jobs", json=body).raise_for_status().json()["id"])

    def begin(self, trials: int = TRIALS, **faults: object) -> Program:
        """Start a worker, wait until it is ready, submit the job; return the worker. `faults` are fields
        of `Faults`."""
        self.faults = replace(self.faults, **faults)  # type: ignore[arg-type]
        worker = self.worker()
        self.until(lambda: self.are_ready(1), "no worker got ready")
        self.submit(trials)
        return worker

    def begin_with_builder(self, nap_s: float) -> Program:
        """Start a worker and a builder, wait for both, submit a job that is built on builders; return the
        builder."""
        self.faults = replace(self.faults, nap_s=nap_s)
        self.worker()
        builder = self.builder()
        self.until(lambda: self.are_ready(2), "worker and builder did not get ready")
        self.submit(build=Build.BUILDER)
        return builder

    def worker(self) -> Program:
        """Start a worker with the same name and faults as those before it."""
        return self._started("board")

    def builder(self) -> Program:
        """Start a worker that only builds, with the same name as those before it."""
        return self._started("builder", "--build")

    def _started(self, name: str, *flags: str) -> Program:
        program = self.rig.program(
            "worker",
            *flags,
            name=f"{self.name}-{len(self.programs)}",
            TUNEFARM_WORKER_SERVER=self.rig.fleet(name),
            TUNEFARM_WORKER_NAME=f"{self.name}-{name}",
            TUNEFARM_WORKER_THREADS="2",
            TUNEFARM_WORKER_RUN_TIMEOUT_S=str(_RUN_LIMIT_S),
            TUNEFARM_WORKER_MEMORY_BYTES=str(_MEMORY_BYTES),
            **{VARIABLE: self.faults.to_json()},
        )
        self.programs.append(program)
        program.start()
        return program

    def close(self) -> None:
        for program in self.programs:
            program.stop()

    # What the database says. A poll that began a transaction would keep SQLite's write lock from the service.

    def job(self) -> Job:
        with self.rig.database.reading() as session:
            return jobs.get(session, self.job_id)

    def trials(self) -> list[Trial]:
        return self._trials_of(self.job_id)

    def _trials_of(self, job_id: str) -> list[Trial]:
        with self.rig.database.reading() as session:
            listed = tasks.for_job(session, job_id)
            return [trial for task in listed for trial in trials.for_task(session, task.id)]

    def done(self) -> int:
        return sum(trial.state == "done" for trial in self.trials())

    def chosen(self) -> Trial:
        """Return the trial of the candidate that misbehaves."""
        wanted = (self.notes / "chosen").read_text()
        return next(trial for trial in self.trials() if digest(trial.trace) == wanted)

    def workers(self) -> list[WorkerInfo]:
        with self.rig.database.reading() as session:
            return [worker for worker in workers.list_workers(session) if worker.id.startswith(self.name)]

    def event_text(self) -> str:
        """Return the text of all events of the job."""
        with self.rig.database.reading() as session:
            listed = events.since(session, self.job_id, 0, 100_000)
        return "\n".join(str(event.data) for event in listed)

    def trials_built(self) -> int:
        """Return how many trials have a library that a builder stored."""
        return sum(trial.library_sha is not None for trial in self.trials())

    def others(self) -> list[Job]:
        """Return the jobs of other requests for this run's device class."""
        with self.rig.database.reading() as session:
            found = jobs.list_jobs(session, 1000, None)
        key = self.faults.device.key
        return [job for job in found if job.request.target == key and job.id != self.job_id]

    def unfinished_others(self) -> int:
        """Count the jobs of other requests for this run's device class that have not ended."""
        mine = (JobRow.target == self.faults.device.key, JobRow.id != self.job_id)
        query = select(func.count()).where(*mine, JobRow.finished_at.is_(None))
        with self.rig.database.reading() as session:
            return session.scalar(query) or 0

    def ledger(self, given_up: int = 0) -> Ledger:
        """Compare trials, workers and job; `given_up` lost trials are expected and not counted as lost."""
        with self.rig.database.reading() as session:
            job = jobs.get(session, self.job_id)
        found = self.trials()
        finished = [trial for trial in found if trial.state == "done"]
        lost = [trial for trial in finished if trial.outcome is Outcome.DEVICE_LOST]
        reported = len(finished) - len(lost)
        counted = sum(worker.trials_done for worker in self.workers() if worker.builder is None)
        counted -= sum(job.trials_done for job in self.others())
        built = sum(worker.trials_done for worker in self.workers() if worker.builder is not None)
        # Fewer is no loss: a stored library counts even if its builder was killed before it reported it.
        built_twice = max(built - self.trials_built(), 0)
        return Ledger(
            state=job.state.value,
            lost=job.request.budget.trials - len(finished) + max(len(lost) - given_up, 0),
            twice=abs(counted - reported) + abs(job.trials_done - len(finished)) + built_twice,
            wrong=self._unverified_schedules(job),
            given_up=len(lost),
        )

    def _unverified_schedules(self, job: Job) -> int:
        """Count published schedules that no trial of this job or of others measured with outcome OK."""
        if job.artifact_sha is None:
            return 0
        found = [trial for one in (job, *self.others()) for trial in self._trials_of(one.id)]
        with self.rig.database.reading() as session:
            _, manifest = unpack(blobs.get(session, job.artifact_sha))
        right = {trial.trace for trial in found if trial.outcome is Outcome.OK}
        published = [entry.trace for entry in manifest.tasks if entry.trace is not None]
        return sum(trace not in right for trace in published)

    # Waiting

    def until(self, true: Callable[[], bool], otherwise: str, patience_s: float = PATIENCE_S) -> None:
        """Raises TimedOut with `otherwise`, the job and the output of its workers."""

        def message() -> str:
            job = self.job() if self.job_id else None
            logs = [f"{program.log.name}:\n{program.output()[-2000:]}" for program in self.programs]
            return "\n".join([f"{self.name}: {otherwise}", f"{job}", *logs])

        self.rig.wait_until(true, message, patience_s)

    def until_done(self, count: int) -> None:
        """Wait until `count` trials have results."""
        self.until(lambda: self.done() >= count, f"there were no {count} results")

    def until_misbehaved(self, count: int = 1) -> None:
        """Wait until the chosen candidate has misbehaved `count` times."""
        self.until(lambda: self.times_misbehaved() >= count, f"nothing misbehaved {count} times")

    def times_misbehaved(self) -> int:
        return len(list(self.notes.glob("did-*")))

    def until_finished(self) -> None:
        self.until(lambda: self.job().state.finished, "the job did not finish")

    def seconds_to_recovery(self, since: float, patience_s: float = PATIENCE_S) -> float:
        """Wait for another result or the job's end; return the seconds from `since`, of the monotonic
        clock."""
        before = self.done()
        over = lambda: self.done() > before or self.job().state.finished  # noqa: E731
        self.until(over, "nothing was measured any more", patience_s)
        return time.monotonic() - since

    def are_ready(self, count: int) -> bool:
        return sum(worker.state is WorkerState.READY for worker in self.workers()) >= count


@functools.cache
def product(width: int) -> bytes:
    """Return an ONNX model that multiplies by a constant matrix: one task."""
    weights = np.random.default_rng(width).standard_normal((width, width), dtype=np.float32)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [32, width])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [32, width])
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "product", [x], [y], [numpy_helper.from_array(weights, "w")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    made.ir_version = 9
    onnx.checker.check_model(made)
    data: bytes = made.SerializeToString()
    return data


def processes_left_behind(notes: Path) -> list[bool]:
    """Return whether each process that a candidate left behind and noted is alive."""
    return [not is_unlocked(path) for path in sorted(notes.glob("left-*"))]
