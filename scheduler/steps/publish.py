"""A job's last step: compile the model with the best schedules, time it, publish what is fastest."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from compiler.importing.spec import ModelError
from compiler.packaging.artifact import ArtifactError, unpack
from core.job import JobState
from core.lease import ModuleKind
from records.fleet import devices, module_runs
from records.fleet.module_runs import StoredModuleRun
from records.jobs import jobs, tasks
from records.jobs.jobs import Job
from records.schedules import schedules
from records.storage import blobs
from scheduler.context import Context
from scheduler.errors import PermanentError
from scheduler.steps import attempts, fallbacks, waiting
from scheduler.steps.artifacts import choose, culprits, replaced, tuned_artifact, with_timings
from scheduler.steps.fallbacks import History, Plan, Schedule, next_plan, why

# What may be published; of equally fast models, the first.
NAMES: Mapping[ModuleKind, str] = {
    "tuned": "the tuned model",
    "published": "the one published before",
    "untuned": "the untuned one",
}


@dataclass(frozen=True)
class Verdict:
    """Which of the timed models to publish, and the sentence that tells the user why."""

    run: StoredModuleRun
    message: str


def run(context: Context, job: Job) -> None:
    """Compile and ask for timings, or, when nothing is left to be tried, publish.

    Raises PermanentError when nothing that was compiled runs on the device.
    """
    with context.database.begin() as session:
        runs = module_runs.of_job(session, job.id)
        history = fallbacks.read(session, job.id, runs)
        if any(run.state != "done" for run in runs):
            waiting.note_missing_device(session, job, context.now())
            return
    cause: Exception | None = None
    if not _works_at_once(history):
        try:
            if _compile(context, job, runs, history):
                return
        except (PermanentError, ArtifactError, ModelError) as error:
            cause = error
    if not any(run.kind == "tuned" for run in runs) and cause is None:
        cause = ArtifactError(history.attempts[0].failure)
    if not runs:
        _time_untuned(context, job, _not_compiled(cause))
    elif not _timed_together(runs):
        with context.database.begin() as session:
            module_runs.time_again(session, [run.id for run in runs if not run.failed])
    else:
        verdict = judge(runs, _not_compiled(cause))
        if history.uncompared and verdict.run.kind == "tuned" and not _untuned_fails(runs):
            said = f"{verdict.message}; its outputs could not be compared ({history.uncompared})"
            verdict = Verdict(verdict.run, said)
        _publish(context, job, verdict, runs)


def judge(runs: Sequence[StoredModuleRun], cause: str = "") -> Verdict:
    """The fastest tuned model, unless all fail or another one is faster. Without one, `cause` says why there
    is none. Raises PermanentError if none runs."""
    works = sorted((run for run in runs if not run.failed), key=_rank)
    tuned = next((run for run in [*works, *runs] if run.kind == "tuned"), None)
    if not works:
        raise PermanentError(
            cause if tuned is None else f"the compiled model does not run on the device: {why(tuned)}"
        )
    best = works[0]
    if best.kind == "tuned":
        return Verdict(best, _praise(best, works))
    if tuned is not None and tuned.failed:
        cause = f"the tuned model failed on the device ({why(tuned)})"
    elif tuned is not None:
        cause = f"the tuned model takes {_ms(tuned)}, {NAMES[best.kind]} {_ms(best)}"
    again = " again" if best.kind == "published" else ""
    return Verdict(best, f"{cause}: {NAMES[best.kind]} is published{again}")


def _rank(run: StoredModuleRun) -> tuple[float, int]:
    return _latency_s(run), list(NAMES).index(run.kind)


def _praise(tuned: StoredModuleRun, works: Sequence[StoredModuleRun]) -> str:
    """How much faster the tuned model is than the others."""
    others = {run.kind: run for run in works}
    text = _ms(tuned)
    if "untuned" in others:
        text += f", {_times(others['untuned'], tuned)} faster than untuned ({_ms(others['untuned'])})"
    if "published" in others:
        before = others["published"]
        text += f", {_times(before, tuned)} faster than what was published before ({_ms(before)})"
    if "untuned" not in others:
        text += "; the untuned model does not run, so neither speed nor outputs were compared"
    return text


def _timed_together(runs: Sequence[StoredModuleRun]) -> bool:
    """Whether the models that run were timed in turns, in one lease. Not those of which one outlived a lost
    device: they had a lease each, and will have."""
    works = [run for run in runs if not run.failed]
    return len({run.lease_id for run in works}) < 2 or any(run.attempts for run in works)


def _untuned_fails(runs: Sequence[StoredModuleRun]) -> bool:
    return any(run.kind == "untuned" and run.failed for run in runs)


def _works_at_once(history: History) -> bool:
    return len(history.attempts) == 1 and not history.attempts[0].failure


def _compile(context: Context, job: Job, runs: Sequence[StoredModuleRun], history: History) -> bool:
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
        if not attempts.begin(session, job, _doing(history), context.now(), limit):
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
    # Its outputs are those that the tuned model must give, unless it is known not to run.
    reference = None if history.uncompared or _untuned_fails(runs) else _untuned(context, job)
    artifact = tuned_artifact(job, device, imported, plan, library, reference, context.now())
    peers = {} if runs else _peers(context, job, library)
    with context.database.begin() as session:
        sha = blobs.put(session, artifact)
        if jobs.get(session, job.id).state is JobState.PUBLISHING:
            _ask(session, job, {**peers, "tuned": sha}, "timing the compiled model", context.now())
            fallbacks.note_timed(session, job.id, plan, sha, reference is not None, context.now())
    return True


def _time_untuned(context: Context, job: Job, cause: str) -> None:
    """Ask for the timings of what may be published without a tuned model."""
    peers = _peers(context, job)
    with context.database.begin() as session:
        if jobs.get(session, job.id).state is JobState.PUBLISHING:
            _ask(session, job, peers, f"{cause}: timing the untuned one", context.now())


def _ask(session: Session, job: Job, artifacts: Mapping[ModuleKind, str], message: str, now: float) -> None:
    for kind, sha in artifacts.items():
        module_runs.add(session, job.id, kind, sha, now)
    jobs.set_message(session, job.id, message)


def _peers(context: Context, job: Job, tuned: bytes | None = None) -> dict[ModuleKind, str]:
    """The artifacts that a tuned library is timed in turns with: the untuned one, and what the last job of
    the model published for the device class, unless that is one of the two."""
    assert job.untuned_artifact_sha is not None, "made when the model was imported"
    peers: dict[ModuleKind, str] = {"untuned": job.untuned_artifact_sha}
    with context.database.begin() as session:
        sha = jobs.published_before(session, job)
        published = None if sha is None else blobs.get(session, sha)
    if sha is None or published is None:
        return peers
    # An artifact that this version can't read is no peer.
    with contextlib.suppress(ArtifactError):
        if unpack(published)[0] not in (tuned, _untuned(context, job)):
            peers["published"] = sha
    return peers


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
        fallbacks.note_failure(session, job.id, plan, failure, context.now())


def _untuned(context: Context, job: Job) -> bytes:
    """The library that TVM made of the model by default."""
    assert job.untuned_artifact_sha is not None, "made when the model was imported"
    with context.database.begin() as session:
        artifact = blobs.get(session, job.untuned_artifact_sha)
    return unpack(artifact)[0]


def _publish(context: Context, job: Job, verdict: Verdict, runs: Sequence[StoredModuleRun]) -> None:
    slowest_first = sorted((run for run in runs if not run.failed), key=_rank, reverse=True)
    secs = {run.kind: run.run_secs for run in slowest_first}
    if verdict.run.kind == "published":
        # It is this job's tuned model now, as if the search had found the same.
        secs["tuned"] = secs.pop("published")
    with context.database.begin() as session:
        timed = blobs.get(session, verdict.run.artifact_sha)
    published = with_timings(timed, secs)
    message = "; ".join(filter(None, [verdict.message, replaced(unpack(published)[1])]))
    with context.database.begin() as session:
        for kind in ("untuned", "tuned"):
            if kind in secs:
                jobs.set_end_to_end(session, job.id, kind, secs[kind])
        sha = blobs.put(session, published)
        _finish(session, job, sha, message, context.now())
    context.barren.pop(job.id, None)


def _finish(session: Session, job: Job, artifact_sha: str, message: str, now: float) -> None:
    if jobs.set_artifacts(session, job.id, tuned_sha=artifact_sha):
        jobs.advance(session, job.id, {JobState.PUBLISHING}, JobState.DONE, now, message=message)


def _not_compiled(cause: Exception | None) -> str:
    return f"the model could not be compiled with the schedules found ({cause})"


def _latency_s(run: StoredModuleRun) -> float:
    return statistics.median(run.run_secs)


def _ms(run: StoredModuleRun) -> str:
    return f"{_latency_s(run) * 1e3:.3g} ms"


def _times(slow: StoredModuleRun, fast: StoredModuleRun) -> str:
    return f"{_latency_s(slow) / _latency_s(fast):.1f} times"
