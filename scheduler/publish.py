"""A job's last step: compile the model with the best schedules, time it, publish what is fastest."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from compiler.importing.spec import ModelError
from compiler.packaging.artifact import ArtifactError, unpack
from records import blobs, devices, jobs, leases, schedules, tasks
from records.jobs import Job, JobState
from records.leases import ModuleRun
from scheduler import fallbacks, journal, waiting
from scheduler.artifacts import choose, culprits, replaced, tuned_artifact, with_timings
from scheduler.context import Context
from scheduler.errors import PermanentError
from scheduler.fallbacks import History, Plan, Schedule, next_plan, why
from search.measurement import Outcome


@dataclass(frozen=True)
class Verdict:
    """Which timed artifact to publish, and the sentence that tells the user why."""

    artifact_sha: str
    message: str


def run(context: Context, job: Job) -> None:
    """Compile and ask for a timing, or, when nothing is left to be tried, publish.

    Raises PermanentError when nothing that was compiled runs on the device, ModelError and ArtifactError when
    nothing was compiled.
    """
    with context.database.begin() as session:
        waiting.note_end_to_end(session, job)
        runs = leases.module_runs(session, job.id)
        history = fallbacks.read(session, job.id, runs)
        is_timed = all(run.state == "done" for run in runs)
        if not is_timed:
            waiting.note_missing_device(session, job, context.now())
    untuned = next((run for run in runs if run.kind == "untuned"), None)
    tuned = [run for run in runs if run.kind == "tuned"]
    if (tuned or history.attempts) and not is_timed:
        return
    cause: Exception | None = None
    if not _works_at_once(history):
        try:
            if _compile(context, job, untuned, history):
                return
        except (PermanentError, ArtifactError, ModelError) as error:
            cause = error
    if not is_timed:
        return
    if tuned:
        best = min(tuned, key=lambda run: _latency_s(run) or math.inf)
        verdict = judge(untuned, best)
        if history.uncompared and verdict.artifact_sha == best.artifact_sha:
            said = f"{verdict.message}; its outputs could not be compared ({history.uncompared})"
            verdict = Verdict(verdict.artifact_sha, said)
        _publish(context, job, verdict, [run for run in (untuned, best) if run is not None])
        return
    if cause is None:
        cause = ArtifactError(history.attempts[0].failure)
    if untuned is None or _latency_s(untuned) is None:
        raise cause
    message = f"the model could not be compiled with the schedules found ({cause})"
    _publish(context, job, _fall_back(untuned, message), [untuned])


def judge(untuned: ModuleRun | None, tuned: ModuleRun) -> Verdict:
    """The tuned model unless it fails or the untuned one is faster. Raises PermanentError if both fail."""
    untuned_s, tuned_s = _latency_s(untuned), _latency_s(tuned)
    if tuned_s is None and (untuned is None or untuned_s is None):
        raise PermanentError(f"the compiled model does not run on the device: {why(tuned)}")
    if tuned_s is None:
        return _fall_back(untuned, f"the tuned model failed on the device ({why(tuned)})")
    if untuned_s is None:
        said = "the untuned model does not run, so neither speed nor outputs were compared"
        return Verdict(tuned.artifact_sha, f"{_ms(tuned_s)}; {said}")
    if tuned_s > untuned_s:
        return _fall_back(untuned, f"the tuned model takes {_ms(tuned_s)}, the untuned one {_ms(untuned_s)}")
    speed = untuned_s / tuned_s
    return Verdict(
        tuned.artifact_sha, f"{_ms(tuned_s)}, {speed:.1f} times faster than untuned ({_ms(untuned_s)})"
    )


def _works_at_once(history: History) -> bool:
    return len(history.attempts) == 1 and not history.attempts[0].failure


def _compile(context: Context, job: Job, untuned: ModuleRun | None, history: History) -> bool:
    """Put the model together with the schedules that come next, and ask for its timing; False when there are
    none. Raises PermanentError, ModelError, ArtifactError."""
    limit = context.settings.max_failures
    with context.database.begin() as session:
        if job.device_class is None:
            raise PermanentError("the job has no device class: submit it again")
        device = devices.get_class(session, job.device_class)
        hashes = [task.workload_hash for task in tasks.for_job(session, job.id)]
        records = schedules.successes(session, device.key, hashes)
        if next_plan(records, history) is None:
            return False
        if not journal.begin(session, job, _doing(history), context.now(), limit):
            return True
    imported = context.models.imported(context.database, job.request, device)
    plan = choose(imported.tasks, records, device.target, history)
    if plan is None:
        return False
    traces = {workload: record.trace for workload, record in plan.chosen.items()}
    try:
        library = context.models.tuned(context.database, job.request, device, traces)
    except ArtifactError as error:
        _note_failure(context, job, plan, culprits(imported.tasks, plan, device.target), str(error))
        return True
    reference = None if history.uncompared else _reference(context, untuned)
    artifact = tuned_artifact(job, device, imported, plan, library, reference, context.now())
    with context.database.begin() as session:
        sha = blobs.put(session, artifact)
        if jobs.get(session, job.id).state is JobState.PUBLISHING:
            leases.add_module_run(session, job.id, "tuned", sha, context.now())
            fallbacks.note_attempt(session, job.id, plan, sha, "", context.now())
            jobs.set_message(session, job.id, "timing the compiled model")
    return True


def _doing(history: History) -> str:
    if not history.attempts:
        return "compiling the model"
    return f"compiling the model with fewer of the schedules found ({history.attempts[-1].failure})"


def _note_failure(
    context: Context, job: Job, plan: Plan, refused: Mapping[Schedule, str], failure: str
) -> None:
    with context.database.begin() as session:
        for schedule, problem in refused.items():
            fallbacks.note_refused(session, job.id, schedule, problem, context.now())
        fallbacks.note_attempt(session, job.id, plan, None, failure, context.now())


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
    message = "; ".join(filter(None, [verdict.message, replaced(unpack(published)[1])]))
    with context.database.begin() as session:
        sha = blobs.put(session, published)
        _finish(session, job, sha, message, context.now())
    context.barren.pop(job.id, None)


def _finish(session: Session, job: Job, artifact_sha: str, message: str, now: float) -> None:
    if jobs.set_artifacts(session, job.id, tuned_sha=artifact_sha):
        jobs.advance(session, job.id, {JobState.PUBLISHING}, JobState.DONE, now, message=message)


def _fall_back(untuned: ModuleRun | None, cause: str) -> Verdict:
    assert untuned is not None, "there is nothing to fall back to"
    return Verdict(untuned.artifact_sha, f"{cause}: the untuned one is published")


def _latency_s(run: ModuleRun | None) -> float | None:
    return statistics.median(run.run_secs) if run is not None and run.outcome is Outcome.OK else None


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
