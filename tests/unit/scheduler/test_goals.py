"""Jobs end when the first of their goals is reached, and several models share the trials of one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pytest

from compiler.children.models import ImportedModel
from compiler.importing.spec import ModelError
from core.job import Budget, EndReason, JobState
from core.measurement import Measurement, Outcome
from records.jobs import events, jobs, models
from records.jobs.jobs import Job, JobRequest
from records.storage import blobs
from scheduler.planning.job_snapshot import ROUND
from system import plugins
from tests.unit.scheduler import farm as world
from tests.unit.scheduler.farm import CONV, CUMSUM, MATMUL, FakeCompiler, Farm

SECOND = b"a second model"


def begin(farm: Farm, budget: Budget, **changes: Any) -> None:
    farm.submit(budget=budget, **changes)
    farm.plug_in()


@pytest.fixture
def constant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "measure", lambda trial: Measurement(Outcome.OK, (1e-3,)))


def test_all_trials_spent_end_a_job(farm: Farm) -> None:
    begin(farm, Budget(8))
    job = farm.finish()
    assert (job.end_reason, job.trials_done) == (EndReason.TRIALS, 8)


@pytest.mark.usefixtures("constant")
def test_the_latency_asked_for_ends_a_job(farm: Farm) -> None:
    """Three matmuls and a convolution of a millisecond each."""
    begin(farm, Budget(100, latency_s=4.0e-3))
    job = farm.finish()
    assert (job.end_reason, job.trials_done) == (EndReason.LATENCY, 4)


@pytest.mark.usefixtures("constant")
def test_an_unreached_latency_goal_does_not_end_the_job(farm: Farm) -> None:
    begin(farm, Budget(12, latency_s=3.9e-3))
    job = farm.finish()
    assert (job.end_reason, job.trials_done) == (EndReason.TRIALS, 12)


@pytest.mark.usefixtures("constant")
def test_a_search_with_too_little_gain_ends(farm: Farm) -> None:
    """Nothing has become faster after a minute, twelve batches of four."""
    begin(farm, Budget(1000, min_gain=0.01))
    job = farm.finish()
    assert job.end_reason is EndReason.GAIN
    assert 48 <= job.trials_done <= 60


def test_the_minutes_end_a_job(farm: Farm) -> None:
    begin(farm, Budget(1000, minutes=0.5, min_gain=0.01))
    assert farm.finish().end_reason is EndReason.MINUTES


@pytest.fixture
def slow_import(farm: Farm, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports take ten minutes."""
    plain = compiler.import_model

    def import_(
        file: IO[bytes], shapes: Mapping[str, tuple[int, ...]], target: str, *, tf32: bool
    ) -> ImportedModel:
        farm.now += 600
        return plain(file, shapes, target, tf32=tf32)

    monkeypatch.setattr(compiler, "import_model", import_)


@pytest.mark.usefixtures("slow_import")
def test_the_minutes_begin_after_the_import(farm: Farm) -> None:
    begin(farm, Budget(1000, minutes=1.0))
    job = farm.finish()
    with farm.database.begin() as session:
        first, *_, last = (event.at for event in events.of_kinds(session, "job", (ROUND,)))
    assert job.started_at is not None
    assert (job.end_reason, first - job.started_at) == (EndReason.MINUTES, 600)
    assert 50 <= last - first < 60


@pytest.mark.usefixtures("constant")
def test_every_subgraph_is_tried_once_when_the_minutes_are_up_at_once(farm: Farm) -> None:
    begin(farm, Budget(1000, minutes=0.01))
    job = farm.finish()
    assert (job.state, job.end_reason) == (JobState.DONE, EndReason.MINUTES)
    assert all(task.best_s for task in farm.tasks())


def test_an_exhausted_search_ends(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    from scheduler.planning import batch

    monkeypatch.setattr(batch, "propose", lambda *args, **more: [])
    begin(farm, Budget(100))
    assert farm.finish().end_reason is EndReason.EXHAUSTED


def test_a_job_that_only_compiles_has_no_reason_to_end(farm: Farm) -> None:
    begin(farm, Budget(0))
    assert farm.finish().end_reason is None


@pytest.mark.usefixtures("constant")
def test_early_stopping_ends_a_search_that_stalls(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    from search import allocate

    monkeypatch.setattr(allocate, "STALLED_TRIALS", 8)
    begin(farm, Budget(1000), objective="early-stopping")
    job = farm.finish()
    assert job.end_reason is EndReason.EXHAUSTED
    assert job.trials_done < 40


@pytest.mark.usefixtures("constant")
def test_the_forecast_uses_the_second_half_of_the_search(farm: Farm) -> None:
    """Four trials in five seconds; the import took no time on this clock."""
    begin(farm, Budget(48))
    for _ in range(5):
        farm.tick()
    assert farm.job().trials_done == 20
    expected_at = farm.job().expected_end_at
    assert expected_at is not None
    farm.finish()
    ended_at = farm.job().finished_at
    assert ended_at is not None
    # The last batch begins five seconds before the end, and so does publishing.
    assert abs(expected_at - ended_at) <= 10
    assert farm.job().expected_end_at is None


def test_an_unknown_objective_fails_the_job(farm: Farm) -> None:
    begin(farm, Budget(8), objective="beauty")
    job = farm.finish()
    assert job.state is JobState.FAILED
    assert "the scheduler has no objective 'beauty': use one of early-stopping, requirements," in str(
        job.error
    )


Install = Callable[[str], None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Install a package whose objective `mine` is this value, and whose `broken` can't be loaded."""

    def write(value: str) -> None:
        folder = tmp_path / "mine-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
        offered = f"[{plugins.OBJECTIVES}]\nbroken = no.such.module:one\nmine = {value}\n"
        (folder / "entry_points.txt").write_text(offered)
        monkeypatch.syspath_prepend(str(tmp_path))
        plugins.extensions.cache_clear()

    yield write
    plugins.extensions.cache_clear()


def total(networks: Sequence[Any]) -> float:
    return float(sum(network.latency_s for network in networks))


def test_an_installed_objective_works_next_to_a_broken_plugin(farm: Farm, install: Install) -> None:
    install(f"{__name__}:total")
    begin(farm, Budget(8), objective="mine")
    assert farm.finish().state is JobState.DONE


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("no.such.module:total", "can't be used: the plug-in mine 1.0 can't be loaded"),
        (f"{__name__}:SECOND", "is not a function"),
        (f"{__name__}:begin", "the objective failed (TypeError"),
    ],
)
def test_an_installed_objective_that_fails_says_why(
    value: str, why: str, farm: Farm, install: Install
) -> None:
    install(value)
    begin(farm, Budget(8), objective="mine")
    job = farm.finish()
    assert job.state is JobState.FAILED
    assert why in str(job.error)


# Several models


@pytest.fixture
def two_models(compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch) -> FakeCompiler:
    """The second model shares the convolution with the first."""
    plain = compiler.import_model

    def import_(
        file: IO[bytes], shapes: Mapping[str, tuple[int, ...]], target: str, *, tf32: bool
    ) -> ImportedModel:
        file.seek(0)
        compiler.tasks = (replace(CONV, weight=5), CUMSUM) if file.read() == SECOND else (MATMUL, CONV)
        return plain(file, shapes, target, tf32=tf32)

    monkeypatch.setattr(compiler, "import_model", import_)
    return compiler


def submit_two(farm: Farm, budget: Budget, **changes: Any) -> list[Job]:
    with farm.database.begin() as session:
        requests = []
        for name, data in (("net", b"a model"), ("second", SECOND)):
            sha = blobs.put(session, data)
            models.add(session, sha, name, farm.now)
            requests.append(JobRequest(sha, name, {}, "native", budget, seed=7, weight=0.5, **changes))
        return jobs.create_group(session, "job", requests, jobs.Submission(farm.now))


def finish_two(farm: Farm) -> tuple[Job, Job]:
    farm.finish("job")
    farm.finish("job-2")
    return farm.job("job"), farm.job("job-2")


@pytest.mark.usefixtures("two_models")
def test_models_share_trials_and_tasks(farm: Farm) -> None:
    submit_two(farm, Budget(20))
    farm.plug_in()
    first, second = finish_two(farm)
    assert (first.state, second.state) == (JobState.DONE, JobState.DONE)
    assert first.end_reason is second.end_reason is EndReason.TRIALS
    assert first.trials_done + second.trials_done == 20
    # Only the first model makes trials of the convolution. Both models use the results.
    assert {trial.workload_hash for trial in farm.trials("job-2")} == {CUMSUM.workload_hash}
    best = {task.workload_hash: task.best_s for task in farm.tasks("job-2")}
    assert best[CONV.workload_hash] is not None
    [entry] = [task for task in farm.published("job-2")[1].tasks if task.workload == CONV.workload_hash]
    assert entry.latency_s == best[CONV.workload_hash]


@pytest.mark.usefixtures("two_models")
def test_all_models_are_imported_before_the_first_trial(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    submit_two(farm, Budget(20))
    farm.plug_in()
    farm.context.wake("intake", "job")
    farm.drain()
    assert {farm.job(one).state for one in ("job", "job-2")} == {JobState.TUNING}
    assert sum(farm.job(one).trials_issued for one in ("job", "job-2")) == 4


def test_a_failing_model_does_not_affect_the_group(farm: Farm, two_models: FakeCompiler) -> None:
    submit_two(farm, Budget(20))
    farm.plug_in()
    two_models.import_error = ModelError("the operator Foo is unknown")
    farm.context.wake("intake", "job")
    step, job_id = farm.wakes.popleft()
    world.drive(farm.context, step, job_id)
    assert farm.job("job").state is JobState.FAILED
    two_models.import_error = None
    second = farm.finish("job-2")
    assert (second.state, second.trials_done) == (JobState.DONE, 20)


@pytest.mark.usefixtures("two_models")
def test_cancelling_one_job_cancels_the_group(farm: Farm) -> None:
    submit_two(farm, Budget(20))
    farm.plug_in()
    farm.tick()
    with farm.database.begin() as session:
        jobs.cancel(session, "job-2", farm.now)
    assert {farm.job(one).state for one in ("job", "job-2")} == {JobState.CANCELLED}


@pytest.mark.usefixtures("two_models")
@pytest.mark.parametrize("death", ["job", "job-2"])
def test_after_one_job_ends_another_plans_for_the_group(farm: Farm, death: str) -> None:
    submit_two(farm, Budget(40))
    farm.plug_in()
    farm.tick()
    with farm.database.begin() as session:
        jobs.advance(session, death, {JobState.TUNING}, JobState.FAILED, farm.now, error="because")
    [other] = {"job", "job-2"} - {death}
    assert farm.finish(other).state is JobState.DONE
    assert sum(farm.job(one).trials_done for one in ("job", "job-2")) == 40


@pytest.mark.usefixtures("two_models", "constant")
def test_models_that_meet_their_requirement_get_no_trials(farm: Farm) -> None:
    """The first model takes 4 ms, and may take 100. The second one never reaches its required latency."""
    with farm.database.begin() as session:
        requests = []
        for name, data, latency_s in (("net", b"a model", 0.1), ("second", SECOND, 1e-6)):
            sha = blobs.put(session, data)
            models.add(session, sha, name, farm.now)
            budget = Budget(60, latency_s=latency_s)
            requests.append(JobRequest(sha, name, {}, "native", budget, seed=7, objective="requirements"))
        jobs.create_group(session, "job", requests, jobs.Submission(farm.now))
    farm.restart(epsilon=0.0)
    farm.plug_in()
    finish_two(farm)
    spent = {task.workload_hash: task.trials for task in farm.tasks("job")}
    assert spent[CONV.workload_hash] > 5 * spent[MATMUL.workload_hash]


def test_the_batch_is_written_into_the_shapes(
    farm: Farm, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Mapping[str, tuple[int, ...]]] = []
    plain: Callable[..., ImportedModel] = compiler.import_model

    def import_(
        data: bytes, shapes: Mapping[str, tuple[int, ...]], target: str, *, tf32: bool
    ) -> ImportedModel:
        seen.append(shapes)
        return plain(data, shapes, target, tf32=tf32)

    monkeypatch.setattr(compiler, "import_model", import_)
    begin(farm, Budget(4), batch=16)
    job = farm.finish()
    assert (job.state, job.request.shapes) == (JobState.DONE, {"x": (16, 3)})
    assert all(shape == {"x": (16, 3)} for shape in seen)
