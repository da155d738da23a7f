"""A job's last step: compile the model with the best schedules, time it, publish what is fastest."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from compiler.packaging.artifact import ArtifactError, unpack
from records import blobs, devices, jobs, leases, schedules, tasks
from records.jobs import Job, JobState
from records.leases import ModuleRun
from scheduler import journal, waiting
from scheduler.artifacts import choose, tuned_artifact, with_timings
from scheduler.context import Context
from scheduler.errors import PermanentError
from search.measurement import Outcome


@dataclass(frozen=True)
class Verdict:
    """Which timed artifact to publish, and the sentence that tells the user why."""

    artifact_sha: str
    message: str


def run(context: Context, job: Job) -> None:
    """Compile and ask for a timing, or, when both timings are in, publish.

    Raises PermanentError when nothing that was compiled runs on the device.
    """
    with context.database.begin() as session:
        waiting.note_end_to_end(session, job)
        runs = {run.kind: run for run in leases.module_runs(session, job.id)}
        is_timed = all(run.state == "done" for run in runs.values())
        if not is_timed:
            waiting.note_missing_device(session, job, context.now())
    if "tuned" not in runs:
        _compile(context, job, runs.get("untuned"))
    elif is_timed:
        _publish(context, job, judge(runs.get("untuned"), runs["tuned"]), list(runs.values()))


def judge(untuned: ModuleRun | None, tuned: ModuleRun) -> Verdict:
    """The tuned model unless it fails or the untuned one is faster. Raises PermanentError if both fail."""
    untuned_s, tuned_s = _latency_s(untuned), _latency_s(tuned)
    if tuned_s is None and (untuned is None or untuned_s is None):
        raise PermanentError(f"the compiled model does not run on the device: {_why(tuned)}")
    if tuned_s is None:
        return _fall_back(untuned, f"the tuned model failed on the device ({_why(tuned)})")
    if untuned_s is None:
        why = "the untuned model does not run, so neither speed nor outputs were compared"
        return Verdict(tuned.artifact_sha, f"{_ms(tuned_s)}; {why}")
    if tuned_s > untuned_s:
        return _fall_back(untuned, f"the tuned model takes {_ms(tuned_s)}, the untuned one {_ms(untuned_s)}")
    speed = untuned_s / tuned_s
    return Verdict(
        tuned.artifact_sha, f"{_ms(tuned_s)}, {speed:.1f} times faster than untuned ({_ms(untuned_s)})"
    )


def _compile(context: Context, job: Job, untuned: ModuleRun | None) -> None:
    try:
        artifact = _artifact(context, job, untuned)
    except (PermanentError, ArtifactError) as error:
        if untuned is None or _latency_s(untuned) is None:
            raise
        cause = f"the model could not be compiled with the schedules found ({error})"
        _publish(context, job, _fall_back(untuned, cause), [untuned])
        return
    if artifact is None:
        return
    with context.database.begin() as session:
        sha = blobs.put(session, artifact)
        if jobs.get(session, job.id).state is JobState.PUBLISHING:
            leases.add_module_run(session, job.id, "tuned", sha, context.now())
            jobs.set_message(session, job.id, "timing the compiled model")


def _artifact(context: Context, job: Job, untuned: ModuleRun | None) -> bytes | None:
    """The tuned model, None when it is too early to try again. Raises PermanentError, ArtifactError."""
    limit = context.settings.max_failures
    with context.database.begin() as session:
        if not journal.begin(session, job, "compiling the model", context.now(), limit):
            return None
        if job.device_class is None:
            raise PermanentError("the job has no device class: submit it again")
        device = devices.get_class(session, job.device_class)
        hashes = [task.workload_hash for task in tasks.for_job(session, job.id)]
        records = schedules.successes(session, device.key, hashes)
    imported = context.models.imported(context.database, job.request, device)
    chosen = choose(imported.tasks, records, device.target)
    traces = {workload: record.trace for workload, record in chosen.items()}
    library = context.models.tuned(context.database, job.request, device, traces)
    reference = _reference(context, untuned)
    return tuned_artifact(job, device, imported, chosen, library, reference, context.now())


def _reference(context: Context, untuned: ModuleRun | None) -> bytes | None:
    """The library whose outputs the tuned one must give: the untuned one, unless it is known not to run."""
    if untuned is None or untuned.outcome not in (None, Outcome.OK):
        return None
    with context.database.begin() as session:
        artifact = blobs.get(session, untuned.artifact_sha)
    return unpack(artifact)[0]


def _publish(context: Context, job: Job, verdict: Verdict, runs: Sequence[ModuleRun]) -> None:
    secs = {run.kind: run.run_secs or None for run in runs}
    with context.database.begin() as session:
        timed = blobs.get(session, verdict.artifact_sha)
    published = with_timings(timed, secs.get("untuned"), secs.get("tuned"))
    with context.database.begin() as session:
        sha = blobs.put(session, published)
        _finish(session, job, sha, verdict.message, context.now())
    context.barren.pop(job.id, None)


def _finish(session: Session, job: Job, artifact_sha: str, message: str, now: float) -> None:
    if jobs.set_artifacts(session, job.id, tuned_sha=artifact_sha):
        jobs.advance(session, job.id, {JobState.PUBLISHING}, JobState.DONE, now, message=message)


def _fall_back(untuned: ModuleRun | None, cause: str) -> Verdict:
    assert untuned is not None, "there is nothing to fall back to"
    return Verdict(untuned.artifact_sha, f"{cause}: the untuned one is published")


def _latency_s(run: ModuleRun | None) -> float | None:
    return statistics.median(run.run_secs) if run is not None and run.outcome is Outcome.OK else None


def _why(run: ModuleRun) -> str:
    lines = run.error.strip().splitlines()
    return f"{run.outcome}: {lines[-1]}" if lines else str(run.outcome)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
