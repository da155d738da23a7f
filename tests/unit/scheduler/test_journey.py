"""A job from the queue to its artifact, with every failure on the way."""

from __future__ import annotations

import io
import math
import tracemalloc
from dataclasses import replace
from typing import Any

import pytest

from compiler.children.verification import Verification
from compiler.importing.model import ExtractedTask
from compiler.importing.spec import CacheSpec, ModelError
from compiler.lowering.trace import UNSCHEDULED
from compiler.packaging.artifact import ArtifactError, open_reference
from compiler.reading.subgraph import read_dag
from core.job import JobState
from core.measurement import Measurement, Outcome
from core.worker import DesiredState, WorkerState
from records.fleet import leases, workers
from records.jobs import events, jobs, tasks, trials
from records.jobs.trials import FALLBACK
from records.schedules import schedules
from scheduler import model_compiler
from scheduler.steps import intake, publish
from scheduler.steps.intake import ALLOWED_DIFFERENCE, NOT_IN_TF32, PADDED, UNVERIFIED
from tests.unit.scheduler.farm import CONV, CUMSUM, DEVICE, MATMUL, TUNED, UNTUNED, FakeCompiler, Farm


def states(farm: Farm, job_id: str = "job") -> list[str]:
    with farm.database.begin() as session:
        return [e.data["state"] for e in events.since(session, job_id, 0, 1000) if e.kind == "state"]


def test_a_job_goes_from_the_queue_to_its_artifact(farm: Farm, compiler: FakeCompiler) -> None:
    farm.submit()
    farm.plug_in()
    job = farm.finish()
    assert states(farm) == ["queued", "importing", "tuning", "publishing", "done"]
    assert (job.trials_done, job.trials_issued) == (8, 8)
    assert job.device_class == DEVICE.key
    assert (job.untuned_s, job.tuned_s) == ((0.5,) * 3, (0.01,) * 3)
    assert job.message == "10 ms, 50.0 times faster than untuned (500 ms)"
    library, manifest = farm.published()
    assert library == TUNED
    assert (manifest.untuned_s, manifest.tuned_s) == ((0.5,) * 3, (0.01,) * 3)
    assert compiler.imported == 1


def test_the_artifact_has_the_best_schedule_of_each_task(farm: Farm, compiler: FakeCompiler) -> None:
    farm.submit(trials=12)
    farm.plug_in()
    farm.finish()
    with farm.database.begin() as session:
        best = schedules.best_many(session, [MATMUL.workload_hash, CONV.workload_hash], DEVICE.key)
    assert compiler.schedules == [{name: record.trace for name, record in best.items()}]
    _, manifest = farm.published()
    entry = manifest.tasks[0]
    assert (entry.name, entry.weight, entry.source) == ("matmul", 3, "trial")
    assert entry.latency_s == best[MATMUL.workload_hash].latency_s


def test_a_workload_that_a_client_stored_under_a_wrong_name_is_put_right(
    farm: Farm, compiler: FakeCompiler
) -> None:
    with farm.database.begin() as session:
        tasks.put_workload(session, MATMUL.workload_hash, CONV.module_json)
    farm.submit()
    farm.plug_in()
    farm.finish()
    assert {trial.workload_hash for trial in farm.trials()} == {MATMUL.workload_hash, CONV.workload_hash}
    with farm.database.begin() as session:
        assert tasks.workload(session, MATMUL.workload_hash) == MATMUL.module_json


def test_a_job_without_trials_uses_known_schedules(farm: Farm, compiler: FakeCompiler) -> None:
    farm.submit()
    farm.plug_in()
    farm.finish()
    farm.submit("compile", trials=0)
    job = farm.finish("compile")
    assert states(farm, "compile") == ["queued", "importing", "publishing", "done"]
    assert job.trials_issued == 0
    tuned, compiled = compiler.schedules
    assert tuned == compiled != {}


def test_without_trials_unknown_tasks_get_one_guess(farm: Farm, compiler: FakeCompiler) -> None:
    farm.submit(trials=0)
    farm.plug_in()
    job = farm.finish()
    assert states(farm) == ["queued", "importing", "tuning", "publishing", "done"]
    assert [trial.program != FALLBACK for trial in farm.trials()].count(True) == 2
    assert job.trials_issued == job.trials_done == len(farm.trials())
    tried = {trial.workload_hash: trial for trial in farm.trials()}
    assert tried.keys() == {MATMUL.workload_hash, CONV.workload_hash}
    ran = {name: trial.trace for name, trial in tried.items() if trial.outcome is Outcome.OK}
    assert compiler.schedules == [ran]


def test_a_guess_that_failed_is_not_compiled_in_and_the_next_job_makes_another(
    farm: Farm, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.unit.scheduler import farm as world

    monkeypatch.setattr(world, "measure", lambda trial: Measurement(Outcome.WRONG_RESULT, error="no"))
    for job_id in ("job", "again"):
        farm.submit(job_id, trials=0)
        farm.plug_in()
        assert farm.finish(job_id).state is JobState.DONE
    unscheduled = dict.fromkeys((MATMUL.workload_hash, CONV.workload_hash), UNSCHEDULED)
    assert compiler.schedules == [unscheduled] * 2, "not even the fallback schedules are right"
    traces = [
        {(t.workload_hash, t.trace) for t in farm.trials(job_id) if t.program != FALLBACK}
        for job_id in ("job", "again")
    ]
    assert len(traces[0]) == len(traces[1]) == 2
    assert not traces[0] & traces[1]


def test_only_unknown_tasks_are_tried(farm: Farm, compiler: FakeCompiler) -> None:
    compiler.tasks = [MATMUL]
    farm.submit()
    farm.plug_in()
    farm.finish()
    compiler.tasks = [MATMUL, CONV]
    farm.restart()
    farm.submit("guess", trials=0)
    assert farm.finish("guess").trials_done
    assert {t.workload_hash for t in farm.trials("guess")} == {CONV.workload_hash}


def test_without_a_device_the_job_waits_in_the_queue(farm: Farm) -> None:
    farm.submit()
    for _ in range(8):
        farm.tick()
    job = farm.job()
    assert (job.state, job.message) == (JobState.QUEUED, "waiting for a device: start a worker")
    farm.plug_in()
    assert farm.finish().state is JobState.DONE


def test_a_worker_that_starts_with_the_scheduler_is_waited_for(farm: Farm) -> None:
    farm.restart(local_worker=True)
    farm.submit()
    farm.tick()
    assert farm.job().message == "waiting for a device: the worker on this machine is starting"


def test_a_device_that_is_still_probing_does_not_count(farm: Farm) -> None:
    farm.submit()
    farm.plug_in(WorkerState.PROBING)
    farm.tick()
    assert farm.job().state is JobState.QUEUED


def test_a_named_class_is_tuned_for_even_while_its_device_is_away(farm: Farm) -> None:
    farm.plug_in()
    farm.submit(target=DEVICE.key)
    farm.now += 3600
    farm.context.wake("intake", "job")
    farm.drain()
    job = farm.job()
    assert job.state is JobState.TUNING
    assert job.trials_issued == 4
    farm.context.wake("round", "job")
    farm.drain()
    assert farm.job().message == f"waiting for a device of class {DEVICE.title}: start a worker on it"
    farm.tick()
    assert "waiting" not in farm.job().message


def test_a_device_that_stopped_cleanly_is_away_at_once(farm: Farm) -> None:
    farm.plug_in(WorkerState.OFFLINE)
    farm.submit(target=DEVICE.key)
    farm.sweep()
    farm.context.wake("round", "job")
    farm.drain()
    assert farm.job().message == f"waiting for a device of class {DEVICE.title}: start a worker on it"


def test_a_drained_device_is_named(farm: Farm) -> None:
    farm.plug_in()
    farm.submit(target=DEVICE.key)
    with farm.database.begin() as session:
        workers.set_desired_state(session, "worker", DesiredState.DRAIN)
    farm.sweep()
    farm.context.wake("round", "job")
    farm.drain()
    said = f"waiting for a device of class {DEVICE.title}: `tunefarm workers resume worker`"
    assert farm.job().message == said
    with farm.database.begin() as session:
        workers.set_desired_state(session, "worker", DesiredState.WORK)
    farm.tick()
    assert "waiting" not in farm.job().message


def test_a_model_that_cannot_be_imported_fails_at_once_with_its_cause(
    farm: Farm, compiler: FakeCompiler
) -> None:
    compiler.import_error = ModelError("operator Foo (node bar) can't be imported")
    farm.submit()
    farm.plug_in()
    farm.tick()
    job = farm.job()
    assert (job.state, job.error) == (JobState.FAILED, "operator Foo (node bar) can't be imported")
    assert farm.tasks() == []
    assert farm.runs() == []
    assert compiler.imported == 1


@pytest.mark.parametrize("usable_bytes", [0, 1 << 40])
def test_a_model_that_is_imported_wrongly_is_not_tuned(
    usable_bytes: int, farm: Farm, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_compiler, "usable_memory_bytes", lambda: usable_bytes)
    compiler.verification = ModelError("operator Foo of node 'bar' is imported wrongly")
    farm.submit()
    farm.plug_in()
    farm.tick()
    job = farm.job()
    assert (job.state, job.error) == (JobState.FAILED, "operator Foo of node 'bar' is imported wrongly")
    assert farm.tasks() == []


def test_a_job_reports_an_unverified_import(farm: Farm, compiler: FakeCompiler) -> None:
    compiler.verification = Verification("it takes longer than 300 s")
    farm.submit()
    farm.plug_in()
    farm.tick()
    with farm.database.begin() as session:
        (said,) = [event for event in events.latest(session, "job", 100) if event.kind == UNVERIFIED]
    assert said.data["message"].endswith("defines: it takes longer than 300 s")
    assert farm.job().state is JobState.TUNING
    assert farm.finish().message.endswith(said.data["message"])


def test_a_rewritten_decoder_that_cannot_be_compared_is_refused(farm: Farm, compiler: FakeCompiler) -> None:
    compiler.cache = CacheSpec("past_length", 8, 1, {}, {}, {})
    compiler.verification = Verification("onnxruntime isn't installed")
    farm.submit()
    farm.plug_in()
    farm.tick()
    job = farm.job()
    assert job.state is JobState.FAILED
    assert job.error == (
        "the decoder, rewritten to keep its cache in place, can't be compared with its file (onnxruntime "
        "isn't installed): export it with fixed lengths, to tune it as a function that takes its cache"
    )
    assert farm.tasks() == []


def test_a_job_reports_differences_that_onnx_allows(farm: Farm, compiler: FakeCompiler) -> None:
    compiler.verification = Verification(note="for NaN, operator Cast of node 'a' computes 'y' otherwise")
    farm.submit()
    farm.plug_in()
    farm.tick()
    with farm.database.begin() as session:
        (said,) = [event for event in events.latest(session, "job", 100) if event.kind == ALLOWED_DIFFERENCE]
    assert said.data["message"] == compiler.verification.note
    assert farm.finish().message.endswith(compiler.verification.note)


def test_a_job_reports_padded_outputs(farm: Farm, compiler: FakeCompiler) -> None:
    compiler.padded_axis = 1
    farm.submit()
    farm.plug_in()
    farm.tick()
    with farm.database.begin() as session:
        (said,) = [event for event in events.latest(session, "job", 100) if event.kind == PADDED]
    assert said.data["message"].endswith("the rest hold -1: 'data' (1, 3)")
    assert farm.finish().message.endswith(said.data["message"])


@pytest.mark.parametrize(("counts", "counted"), [((3, 3), "all"), ((2, 3), "2 of 3")])
def test_a_job_reports_halves_that_are_computed_in_float32(
    farm: Farm, compiler: FakeCompiler, counts: tuple[int, int], counted: str
) -> None:
    compiler.halves_in_float32 = counts
    farm.submit()
    farm.plug_in()
    farm.tick()
    message = farm.finish().message
    assert message.endswith(
        f"; {counted} convolutions and matrix products of float16 or bfloat16 are computed in float32, "
        "which is faster on this processor"
    )


def test_a_job_reports_that_nothing_is_computed_in_tf32(farm: Farm, compiler: FakeCompiler) -> None:
    farm.submit(tf32=True)
    farm.plug_in()
    farm.tick()
    with farm.database.begin() as session:
        told = events.since(session, "job", 0, 1000)
    (said,) = [event.data["message"] for event in told if event.kind == NOT_IN_TF32]
    assert said == "nothing is computed in TF32: it takes a GPU of compute capability 8.0 or newer"
    messages = [event.data["message"] for event in told if event.kind == "state"]
    assert messages[2] == f"imported in 0 s; searching 2 of 2 subgraphs; {said}"
    assert farm.finish().message == f"10 ms, 50.0 times faster than untuned (500 ms); {said}"


def test_an_unexpected_error_is_tried_again_and_then_given_up(farm: Farm, compiler: FakeCompiler) -> None:
    compiler.import_error = RuntimeError("the moon\nis full")
    farm.submit()
    farm.plug_in()
    farm.tick()
    assert farm.job().message == "trying again after RuntimeError: the moon"
    job = farm.finish()
    assert job.state is JobState.FAILED
    assert job.error == "gave up after 5 attempts: trying again after RuntimeError: the moon"
    assert compiler.imported == 5
    # With growing pauses, so that a temporary fault can pass.
    assert farm.now - 1000 >= 55


def test_no_step_copies_a_library(farm: Farm, compiler: FakeCompiler) -> None:
    size = 16 << 20
    compiler.tuned = bytes(size)
    farm.latency_s = {**farm.latency_s, compiler.tuned: 0.01}
    farm.submit(trials=1)
    farm.plug_in()
    most = 0
    while not farm.job().state.finished:
        farm.work()
        tracemalloc.start()
        farm.sweep()
        most = max(most, tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        farm.now += 5
    assert farm.published()[0] == compiler.tuned
    assert most < size


def test_a_publish_that_always_fails_ends_its_job(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("the moon")

    monkeypatch.setattr(publish, "write_timed", fail)
    farm.submit()
    farm.plug_in()
    job = farm.finish()
    assert (job.state, job.error) == (JobState.FAILED, "gave up after 6 attempts: RuntimeError: the moon")


def test_a_temporary_error_does_not_fail_the_job(farm: Farm, compiler: FakeCompiler) -> None:
    compiler.import_error = RuntimeError("once")
    farm.submit()
    farm.plug_in()
    farm.tick()
    compiler.import_error = None
    assert farm.finish().state is JobState.DONE


def test_a_model_the_search_does_not_cover_is_still_compiled(farm: Farm, compiler: FakeCompiler) -> None:
    compiler.tasks = [CUMSUM]
    farm.submit()
    farm.plug_in()
    job = farm.finish()
    assert (job.state, job.trials_issued) == (JobState.DONE, 1)
    [task], [trial] = farm.tasks(), farm.trials()
    assert not task.covered
    assert "several values in one block" in task.reason
    assert compiler.schedules == [{CUMSUM.workload_hash: trial.trace}]
    [entry] = farm.published()[1].tasks
    assert (entry.source, entry.share, entry.reason) == ("fallback", 1.0, task.reason)
    assert "1 of 1 subgraphs runs the fallback schedule (100.0% of the time): cumsum: " in job.message


def test_a_subgraph_whose_fallback_schedule_does_not_compile_stays_unscheduled(
    farm: Farm, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, texts = read_dag, iter((MATMUL, CONV))
    monkeypatch.setattr(
        intake, "read_dag", lambda module: real(module) if next(texts) is MATMUL else real(None)
    )
    compiler.unschedulable = CONV
    farm.submit()
    farm.plug_in()
    job = farm.finish()
    assert (job.state, farm.published()[0]) == (JobState.DONE, TUNED)
    matmul, conv = farm.published()[1].tasks
    assert (matmul.source, matmul.reason) == ("trial", "")
    assert (conv.source, conv.reason) == ("fallback", "it crashed the compiler (SIGSEGV)")
    assert compiler.schedules == [
        {MATMUL.workload_hash: matmul.trace, CONV.workload_hash: UNSCHEDULED},
    ]


@pytest.mark.parametrize("stage", ["read_dag", "sketches_of"])
def test_a_subgraph_that_the_search_stumbles_over_is_named_and_the_others_are_tuned(
    farm: Farm, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    def stumble(*given: Any) -> Any:
        if next(stumbles):
            raise RuntimeError("an internal error")
        return real(*given)

    real, stumbles = getattr(intake, stage), iter((True, False))
    monkeypatch.setattr(intake, stage, stumble)
    farm.submit()
    farm.plug_in()
    assert farm.finish().state is JobState.DONE
    (broken, other), (published, _) = farm.tasks(), farm.published()
    broken, other = sorted((broken, other), key=lambda task: task.covered)
    assert (broken.reason, other.reason) == ("the search can't read it (an internal error)", "")
    assert (published, other.trials) == (TUNED, 7)


def test_an_uncovered_task_does_not_stop_the_others(farm: Farm, compiler: FakeCompiler) -> None:
    compiler.tasks = [CUMSUM, MATMUL]
    farm.submit()
    farm.plug_in()
    assert farm.finish().trials_done == 8
    assert {task.name: task.trials for task in farm.tasks()} == {"cumsum": 1, "matmul": 7}


def test_the_untuned_model_is_published_if_the_tuned_model_is_slower(farm: Farm) -> None:
    farm.latency_s = {UNTUNED: 0.01, TUNED: 0.02}
    farm.submit()
    farm.plug_in()
    job = farm.finish()
    assert job.state is JobState.DONE
    assert job.message == "the tuned model takes 20 ms, the untuned one 10 ms: the untuned one is published"
    assert farm.published()[0] == UNTUNED


def test_the_untuned_model_is_published_if_the_tuned_model_fails(farm: Farm) -> None:
    farm.broken = frozenset({TUNED})
    farm.submit()
    farm.plug_in()
    job = farm.finish()
    assert job.state is JobState.DONE
    assert "wrong_result: the outputs differ" in job.message
    assert farm.published()[0] == UNTUNED
    assert job.tuned_s is None


def test_the_tuned_model_is_published_if_the_untuned_model_fails(farm: Farm) -> None:
    farm.broken = frozenset({UNTUNED})
    farm.submit()
    farm.plug_in()
    job = farm.finish()
    assert (job.state, farm.published()[0]) == (JobState.DONE, TUNED)
    assert job.message == (
        "10 ms; the untuned model does not run, so neither speed nor outputs were compared"
    )
    assert (job.untuned_s, job.tuned_s) == (None, (0.01,) * 3)
    assert [run.kind for run in farm.runs()].count("tuned") == 2, "the first hung while it was compared"
    assert not any(entry.reason for entry in farm.published()[1].tasks), "no schedule is to blame"


def test_trials_are_leased_before_any_model_is_timed(farm: Farm) -> None:
    farm.submit()
    farm.plug_in()
    farm.sweep()
    lease = farm.lease()
    assert lease is not None
    assert lease.trials
    assert farm.runs() == []


def test_all_models_are_timed_in_one_lease(farm: Farm, compiler: FakeCompiler) -> None:
    farm.submit()
    farm.plug_in()
    farm.finish()
    compiler.tuned = TUNED + b" better"
    farm.latency_s = {UNTUNED: 0.5, TUNED: 0.015, compiler.tuned: 0.012}
    farm.submit("again")
    job = farm.finish("again")
    runs = farm.runs("again")
    assert [run.kind for run in runs] == ["untuned", "published", "tuned"]
    assert len({run.lease_id for run in runs}) == 1
    assert job.message == (
        "12 ms, 41.7 times faster than untuned (500 ms), "
        "1.2 times faster than what was published before (15 ms)"
    )
    library, manifest = farm.published("again")
    assert library == compiler.tuned
    assert (manifest.untuned_s, manifest.tuned_s) == ((0.5,) * 3, (0.012,) * 3)
    assert manifest.published_s == (0.015,) * 3
    assert (job.untuned_s, job.tuned_s) == (manifest.untuned_s, manifest.tuned_s)


def test_a_faster_earlier_model_stays_published(farm: Farm, compiler: FakeCompiler) -> None:
    farm.submit()
    farm.plug_in()
    farm.finish()
    compiler.tuned = TUNED + b" worse"
    farm.latency_s = {UNTUNED: 0.5, TUNED: 0.01, compiler.tuned: 0.012}
    farm.submit("again")
    job = farm.finish("again")
    said = "the tuned model takes 12 ms, the one published before 10 ms"
    assert job.message == f"{said}: the one published before is published again"
    library, manifest = farm.published("again")
    assert library == TUNED
    assert manifest.tuned_s == job.tuned_s == (0.01,) * 3
    assert manifest.published_s == ()


@pytest.mark.parametrize("changes", [{"shapes": {"data": (4, 3)}}, {}])
def test_earlier_models_of_other_shapes_or_the_same_library_are_not_timed(
    farm: Farm, changes: dict[str, Any]
) -> None:
    farm.submit()
    farm.plug_in()
    farm.finish()
    farm.submit("again", **changes)
    farm.finish("again")
    assert [run.kind for run in farm.runs("again")] == ["untuned", "tuned"]


def test_models_timed_separately_are_timed_again_together(farm: Farm, compiler: FakeCompiler) -> None:
    """The second tuned model is compiled after the first one has failed."""
    farm.submit(trials=12)
    farm.plug_in()
    compiler.harmful = lambda trace: trace == _traces(farm, MATMUL)[0]
    farm.finish()
    works = [run for run in farm.runs() if not run.failed]
    assert {run.kind for run in works} == {"untuned", "tuned"}
    assert len({run.lease_id for run in works}) == 1


def test_after_a_lost_device_each_model_is_timed_alone(farm: Farm) -> None:
    farm.submit()
    farm.plug_in()
    while farm.job().state is not JobState.PUBLISHING:
        farm.tick()
    farm.sweep()
    lost = farm.lease()
    assert lost is not None
    assert len(lost.module_runs) == 2
    farm.now += 61
    job = farm.finish()
    assert (job.state, farm.published()[0]) == (JobState.DONE, TUNED)
    assert len({run.lease_id for run in farm.runs()}) == 2


def test_the_tuned_model_is_timed_with_the_untuned_one_as_reference(farm: Farm) -> None:
    farm.submit()
    farm.plug_in()
    job = farm.finish()
    [tuned] = [run for run in farm.runs() if run.kind == "tuned"]
    reference = open_reference(io.BytesIO(farm.blob(tuned.artifact_sha)))
    assert reference is not None
    assert reference.read() == UNTUNED
    assert farm.published()[0] == TUNED
    assert open_reference(io.BytesIO(farm.blob(job.artifact_sha))) is None


def test_a_model_that_runs_neither_way_fails(farm: Farm) -> None:
    farm.broken = frozenset({UNTUNED, TUNED})
    farm.submit()
    farm.plug_in()
    job = farm.finish()
    assert job.state is JobState.FAILED
    assert job.error == (
        "the compiled model does not run on the device: run_timeout: the run took longer than 120 s"
    )


def test_schedules_that_do_not_compile_give_way_to_the_untuned_model(
    farm: Farm, compiler: FakeCompiler
) -> None:
    compiler.build_error = ArtifactError("the model can't be compiled: LLVM ERROR")
    farm.submit()
    farm.plug_in()
    job = farm.finish()
    assert (job.state, farm.published()[0]) == (JobState.DONE, UNTUNED)
    assert "LLVM ERROR" in job.message


def test_only_a_harmful_schedule_is_left_out(farm: Farm, compiler: FakeCompiler) -> None:
    farm.submit(trials=12)
    farm.plug_in()
    compiler.harmful = lambda trace: trace == _traces(farm, MATMUL)[0]
    job = farm.finish()
    assert (job.state, farm.published()[0]) == (JobState.DONE, TUNED)
    matmul, conv = farm.published()[1].tasks
    assert conv.trace == _traces(farm, CONV)[0]
    assert matmul.trace == _traces(farm, MATMUL)[1], "its next best takes its place"
    assert matmul.reason == "wrong_result: the outputs differ"
    said = "1 of 2 subgraphs runs a slower schedule ("
    assert job.message.startswith(f"10 ms, 50.0 times faster than untuned (500 ms); {said}")
    assert job.message.endswith("% of the time): matmul: wrong_result: the outputs differ")
    assert job.tuned_s == (0.01,) * 3


def test_a_subgraph_with_only_harmful_schedules_gets_the_fallback(farm: Farm, compiler: FakeCompiler) -> None:
    farm.submit(trials=12)
    farm.plug_in()
    compiler.harmful = lambda trace: trace in _traces(farm, MATMUL)
    job = farm.finish()
    matmul, conv = farm.published()[1].tasks
    assert (matmul.trace, matmul.source) == (None, "fallback")
    assert conv.trace is not None
    assert "1 of 2 subgraphs runs the fallback schedule: matmul: wrong_result" in job.message


def test_only_a_schedule_that_does_not_compile_is_left_out(farm: Farm, compiler: FakeCompiler) -> None:
    farm.submit(trials=12)
    farm.plug_in()
    compiler.uncompilable = lambda trace: trace == _traces(farm, MATMUL)[0]
    job = farm.finish()
    matmul, conv = farm.published()[1].tasks
    assert conv.trace == _traces(farm, CONV)[0]
    assert matmul.trace == _traces(farm, MATMUL)[1]
    assert len([run for run in farm.runs() if run.kind == "tuned"]) == 1, "no device was asked to find it"
    assert "subgraphs runs a slower schedule (" in job.message
    assert job.message.endswith("% of the time): matmul: it crashed the compiler (SIGSEGV)")


def test_found_schedules_are_published_after_a_compiler_failure(farm: Farm, compiler: FakeCompiler) -> None:
    """A model with a part of the schedules has worked, so it is published instead of the untuned one."""
    compiler.tasks = (MATMUL, CONV, CUMSUM)
    farm.submit(trials=12)
    farm.plug_in()
    compiler.harmful = lambda trace: trace == _traces(farm, MATMUL)[0]
    while not any(run.outcome is Outcome.OK for run in farm.runs() if run.kind == "tuned"):
        farm.tick()
    compiler.build_error = RuntimeError("the machine is out of order")
    job = farm.finish()
    assert (job.state, farm.published()[0]) == (JobState.DONE, TUNED)


def test_a_failed_comparison_loses_no_schedule(farm: Farm) -> None:
    """The untuned model runs alone, but there is no room for it beside the tuned one."""
    farm.uncomparable = True
    farm.submit()
    farm.plug_in()
    job = farm.finish()
    assert (job.state, farm.published()[0]) == (JobState.DONE, TUNED)
    assert job.message.endswith(
        "its outputs could not be compared (run_error: the untuned model, to compare with: std::bad_alloc)"
    )
    assert not any(entry.reason for entry in farm.published()[1].tasks)


def _traces(farm: Farm, task: ExtractedTask) -> list[str]:
    """Fastest first."""
    with farm.database.begin() as session:
        found = schedules.successes(session, DEVICE.key, [task.workload_hash])
    return [record.trace for record in found]


def test_steps_ignore_a_cancelled_job(farm: Farm) -> None:
    farm.submit()
    farm.plug_in()
    farm.tick()
    with farm.database.begin() as session:
        jobs.cancel(session, "job", farm.now)
    for step in ("intake", "round", "publish"):
        farm.context.wake(step, "job")
    farm.drain()
    farm.tick()
    assert farm.job().state is JobState.CANCELLED
    assert farm.wakes == type(farm.wakes)()


def test_a_lost_device_loses_no_trial(farm: Farm) -> None:
    farm.submit()
    farm.plug_in()
    farm.tick()
    lost = farm.lease(limit=2)
    assert lost is not None
    farm.now += 61
    job = farm.finish()
    assert (job.state, job.trials_done) == (JobState.DONE, 8)
    assert len(farm.measured) == len(set(farm.measured)) == 8


def test_trials_that_take_two_devices_down_do_not_hold_up_the_job(farm: Farm) -> None:
    farm.submit()
    farm.plug_in()
    farm.tick()
    for _ in range(2):
        assert farm.lease(limit=1) is not None
        farm.now += 61
        farm.sweep()
    job = farm.finish()
    assert (job.state, job.trials_done) == (JobState.DONE, 8)
    assert [t.outcome for t in farm.trials()].count(Outcome.DEVICE_LOST) == 1


def test_repeated_steps_change_nothing(farm: Farm) -> None:
    farm.submit()
    farm.plug_in()
    while not farm.job().state.finished:
        farm.tick()
        for step in ("intake", "round", "publish") * 2:
            farm.context.wake(step, "job")
        farm.drain()
    assert farm.job().trials_done == 8
    assert len(farm.measured) == len(set(farm.measured)) == 8
    assert sorted(run.kind for run in farm.runs()) == ["tuned", "untuned"]
    assert states(farm) == ["queued", "importing", "tuning", "publishing", "done"]


def test_a_job_claimed_by_another_scheduler_is_skipped(farm: Farm) -> None:
    farm.submit()
    farm.plug_in()
    with farm.database.begin() as session:
        assert jobs.claim_job(session, "job", "elsewhere", farm.now, 12)
    farm.tick()
    assert farm.job().state is JobState.QUEUED
    farm.now += 10
    assert farm.finish().state is JobState.DONE


def test_unknown_jobs_are_ignored(farm: Farm) -> None:
    farm.context.wake("round", "nobody")
    farm.drain()
    assert not farm.wakes


@pytest.mark.parametrize("step", ["intake", "round", "publish"])
def test_any_wake_up_moves_a_job_on(farm: Farm, step: str) -> None:
    farm.submit()
    farm.plug_in()
    farm.context.wake(step, "job")
    farm.drain()
    assert farm.job().state is JobState.TUNING
    assert farm.job().trials_issued == 4


def test_the_sweep_expires_leases(farm: Farm) -> None:
    farm.submit()
    farm.plug_in()
    farm.tick()
    assert farm.lease() is not None
    farm.now += 61
    farm.sweep()
    with farm.database.begin() as session:
        assert leases.current(session, "worker", "session", farm.now) is None
        assert trials.counts(session, "job").pending == 4


VARIANT = replace(
    CONV, weight=MATMUL.weight, variant="winograd_2", variant_of=MATMUL.workload_hash, exact=False
)


def test_the_faster_of_original_and_variant_is_compiled(farm: Farm, compiler: FakeCompiler) -> None:
    compiler.tasks = (MATMUL, VARIANT)
    farm.submit(trials=12)
    farm.plug_in()
    farm.finish()
    with farm.database.begin() as session:
        told = [event.data for event in events.since(session, "job", 0, 1000) if event.kind == "state"]
    assert told[2]["message"] == "imported in 0 s; searching 1 of 1 subgraphs, and 1 variant"
    best = {task.workload_hash: task.best_s for task in farm.tasks()}
    [chosen] = compiler.schedules
    assert chosen.keys() == {min(best, key=lambda name: best[name] or math.inf)}
    [entry] = farm.published()[1].tasks
    assert entry.workload in chosen
    assert (entry.variant, entry.weight) == ("winograd_2" * (entry.workload != MATMUL.workload_hash), 3)


def test_a_variant_that_does_not_compile_gives_way_to_the_subgraph_itself(
    farm: Farm, compiler: FakeCompiler
) -> None:
    compiler.tasks = (MATMUL, VARIANT)
    farm.submit("first", trials=12)
    farm.plug_in()
    farm.finish("first")
    traces = {record.trace for record in farm.records() if record.workload_hash == VARIANT.workload_hash}
    compiler.uncompilable = lambda trace: trace in traces
    farm.submit("second", trials=1)
    farm.finish("second")
    assert compiler.schedules[-1].keys() == {MATMUL.workload_hash}


def test_an_exact_job_has_no_variants_that_round_differently(farm: Farm, compiler: FakeCompiler) -> None:
    compiler.tasks = (MATMUL, VARIANT)
    farm.submit(trials=4, exact=True)
    farm.plug_in()
    farm.finish()
    assert [task.workload_hash for task in farm.tasks()] == [MATMUL.workload_hash]
    assert farm.job().request.exact
    assert [entry.variant for entry in farm.published()[1].tasks] == [""]


def test_an_exact_job_has_variants_that_differ_by_the_order_of_sums(
    farm: Farm, compiler: FakeCompiler
) -> None:
    compiler.tasks = (MATMUL, replace(VARIANT, variant="subpixel", exact=True))
    farm.submit(trials=4, exact=True)
    farm.plug_in()
    farm.finish()
    assert {task.workload_hash for task in farm.tasks()} == {MATMUL.workload_hash, VARIANT.workload_hash}


def test_a_tf32_job_uses_tf32_variants_and_is_published_separately(
    farm: Farm, compiler: FakeCompiler
) -> None:
    compiler.tasks = (MATMUL, replace(VARIANT, variant="tf32"))
    farm.submit("first", trials=4, tf32=True)
    farm.plug_in()
    farm.finish("first")
    assert compiler.tf32, "the compiler was asked for them"
    compiler.tasks = (MATMUL,)
    farm.submit("second", trials=1)
    farm.finish("second")
    assert not compiler.tf32
    with farm.database.begin() as session:
        first, second = (jobs.get(session, name) for name in ("first", "second"))
        assert jobs.published_before(session, second) is None
        assert jobs.published_before(session, first) == second.artifact_sha
