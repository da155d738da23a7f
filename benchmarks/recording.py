"""Record finished jobs, to be replayed by `benchmarks.allocation` and `benchmarks.time_left`.

    TUNEFARM_EPSILON=1 tunefarm tune resnet18.onnx --minutes 5 --data one
    python -m benchmarks.recording one/tunefarm.db two/tunefarm.db --json FILE

The recordings are stored beside FILE, which gets the numbers of their trials. With TUNEFARM_EPSILON=1, the
job allocates trials at random, so that the recording doesn't depend on the allocator.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy.orm import Session

from benchmarks.arguments import command_parser
from benchmarks.results.figures import Figure, figure
from benchmarks.results.output import Output
from benchmarks.results.recordings import RECORDINGS, RecordedTask, RecordedTrial, Recording
from core.job import JobState
from core.measurement import Outcome
from core.model_latency import base_workload
from records import devices
from records.jobs import events, jobs, tasks, trials
from records.jobs.jobs import Job
from records.jobs.tasks import Task
from records.storage.database import Database, StorageError
from worker.settings import usable_cores


def main(argv: Sequence[str] | None = None) -> int:
    parser = command_parser("benchmarks.recording", __doc__)
    parser.add_argument(
        "databases", nargs="+", type=Path, metavar="DATABASE", help="tunefarm.db of a data folder"
    )
    args = parser.parse_args(argv)
    output = Output("benchmarks.recording", argv, args.json, usable_cores())
    found: list[Recording] = []
    for file in args.databases:
        if not file.exists():
            output.fail(f"there is no database {file}")
            return 1
        try:
            database = Database(f"sqlite:///{file.resolve()}")
            database.migrate()
            with database.begin() as session:
                done = [job for job in jobs.list_jobs(session, 200, None) if job.state is JobState.DONE]
                found += [record(session, job) for job in reversed(done) if job.trials_done]
            database.close()
        except StorageError as error:
            output.fail(error)
            return 1
    if not found:
        output.fail("no job with trials is done in there: tune a network first")
        return 1
    RECORDINGS.write(found, args.json)
    output.finish([_trials_of(recording) for recording in found])
    return 0


def record(session: Session, job: Job) -> Recording:
    """Return the recording of a finished job."""
    assert job.device_class is not None, "it was tuned"
    began_at = {event.data["state"]: event.at for event in events.of_kinds(session, job.id, (events.STATE,))}
    importing, tuning, publishing, done = (
        began_at[state] for state in (JobState.IMPORTING, JobState.TUNING, JobState.PUBLISHING, JobState.DONE)
    )
    listed = tasks.for_job(session, job.id)
    index = {task.id: at for at, task in enumerate(listed)}
    tags = tasks.tags(session, job.device_class)
    return Recording(
        network=job.request.model_name,
        device=devices.get_class(session, job.device_class).name,
        importing_s=round(tuning - importing, 2),
        search_s=round(publishing - tuning, 2),
        publishing_s=round(done - publishing, 2),
        tasks=tuple(_task(session, task, tags.get(task.workload_hash, "")) for task in listed),
        trials=tuple(
            RecordedTrial(index[trial.task_id], round(trial.finished_at - tuning, 2), _short(trial.latency_s))
            for trial in trials.measured(session, job.id)
        ),
    )


def _task(session: Session, task: Task, tag: str) -> RecordedTask:
    made = [trial for trial in trials.for_task(session, task.id) if trial.state == "done"]
    # A program that was measured again has its final latency, as in the search.
    settled = {
        trial.trace: trial.latency_s if trial.outcome is Outcome.OK else None
        for trial in sorted(made, key=lambda trial: trial.repeat)
    }
    return RecordedTask(
        task.name,
        task.workload_hash,
        base_workload(task),
        task.weight,
        task.flops,
        tag,
        task.covered,
        tuple(_short(settled[trial.trace]) for trial in made),
    )


def _short(seconds: float | None) -> float | None:
    return None if seconds is None or not math.isfinite(seconds) else float(f"{seconds:.5g}")


def _trials_of(recording: Recording) -> Figure:
    per_task = [len(task.seconds) for task in recording.tasks if task.covered]
    return figure(
        f"trials of {len(per_task)} tasks",
        sum(per_task),
        "",
        subject=recording.network,
        count=len(per_task),
        note=f"{min(per_task)} to {max(per_task)} of each",
    )


if __name__ == "__main__":
    sys.exit(main())
