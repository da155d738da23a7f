"""The cost model of a device class: when it is trained, what is stored, and failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from core.measurement import Outcome
from records.jobs import tasks
from records.schedules import cost_models
from records.schedules.cost_models import Version
from records.schedules.schedules import Record
from scheduler.learning import evaluation, training
from scheduler.learning.training import (
    BATCH_GROWTH,
    EAGER_TRAINING_SHARE,
    MAX_TRAINING_SHARE,
    MIN_EVALUATED,
    TrainedModel,
)
from search import policy
from search.cost.model import CostModel
from search.programs.annotate import sample
from search.programs.program import Population
from tests.unit.records.farm import put_measured
from tests.unit.scheduler.farm import CONV, DEVICE, MATMUL, Farm

NOW = 1000.0


def measured(farm: Farm, count: int, at: float = NOW, task: Any = MATMUL) -> None:
    """Store `count` records of random programs: the larger their first value, the faster."""
    with farm.database.begin() as session:
        tasks.put_workload(session, task.workload_hash, task.module_json)
    [space] = farm.context.spaces.load([task.workload_hash], DEVICE).values()
    rng = np.random.default_rng(int(at))
    drawn = [sample(sketch, 4 * count, rng) for sketch in space.search_task.sketches]
    programs = [population.program(row) for population in drawn for row in range(len(population))]
    with farm.database.begin() as session:
        for number, program in enumerate(rng.permutation(np.array(programs, dtype=object))[:count]):
            latency_s = 1e-3 / (1 + program.values[0])
            record = Record(
                workload_hash=task.workload_hash,
                device_class=DEVICE.key,
                trace=f"{at} {number}",
                program=program.to_json(),
                latency_s=latency_s,
                run_s=(latency_s,),
                outcome=Outcome.OK,
                target="",
                source="trial",
                created_at=at,
            )
            put_measured(session, record)


def versions(farm: Farm) -> list[Version]:
    with farm.database.begin() as session:
        return cost_models.versions(session).get(DEVICE.key, [])


@pytest.fixture
def trainings(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of samples of each training. Only trainings move the clock, each by a second."""
    farm.plug_in()
    made: list[int] = []
    real = policy.train

    def train(samples: Any) -> CostModel:
        made.append(len(samples))
        farm.now += 1.0
        return real(samples)

    monkeypatch.setattr(training, "train", train)
    return made


def test_a_version_of_every_training_is_stored(farm: Farm, trainings: list[int]) -> None:
    measured(farm, 40)
    found = farm.context.trainer.up_to_date(DEVICE)
    assert (found.is_learned, found.records) == (True, 40)
    assert versions(farm) == [Version(DEVICE.key, 40, NOW, NOW + 1, 1.0, None)]


def test_without_new_records_the_model_is_not_trained_again(farm: Farm, trainings: list[int]) -> None:
    assert not farm.context.trainer.up_to_date(DEVICE).is_learned
    assert trainings == []
    measured(farm, 40)
    for _ in range(3):
        farm.context.trainer.up_to_date(DEVICE)
        farm.now += 1e6
    assert trainings == [40]


def test_a_new_profile_has_the_model_trained_again(farm: Farm, trainings: list[int]) -> None:
    measured(farm, 40)
    farm.context.trainer.up_to_date(DEVICE)
    calibrated = replace(DEVICE, profile=replace(DEVICE.speeds, hertz=1e9))
    for _ in range(2):
        assert farm.context.trainer.up_to_date(calibrated).is_learned
    assert trainings == [40, 40], "once, of the same records"
    farm.restart()
    farm.context.trainer.up_to_date(calibrated)
    assert trainings == [40, 40], "the version stored is one of this profile"
    farm.restart()
    farm.context.trainer.up_to_date(DEVICE)
    assert trainings == [40, 40, 40]


def test_a_new_scheduler_uses_the_newest_version(farm: Farm, trainings: list[int]) -> None:
    measured(farm, 40)
    before = farm.context.trainer.up_to_date(DEVICE)
    farm.restart()
    measured(farm, 30, at=NOW + 5)
    after = farm.context.trainer.up_to_date(DEVICE)
    assert trainings == [40]
    assert after.is_learned
    assert after.model.to_bytes() == before.model.to_bytes()
    farm.now += 1.0 / EAGER_TRAINING_SHARE
    farm.context.trainer.up_to_date(DEVICE)
    assert trainings == [40, 70]


def test_a_clock_that_was_set_back_delays_no_training(farm: Farm, trainings: list[int]) -> None:
    measured(farm, 40)
    farm.context.trainer.up_to_date(DEVICE)
    farm.now -= 900.0
    measured(farm, 30, at=farm.now)
    farm.context.trainer.up_to_date(DEVICE)
    assert trainings == [40, 70]


def test_a_version_with_other_features_is_ignored(farm: Farm, trainings: list[int]) -> None:
    with farm.database.begin() as session:
        cost_models.add(session, Version(DEVICE.key, 9, NOW, NOW, 1.0, None), b"no model")
    assert not farm.context.trainer.up_to_date(DEVICE).is_learned
    measured(farm, 40)
    assert farm.context.trainer.up_to_date(DEVICE).is_learned


def test_a_model_of_too_few_records_is_not_stored(farm: Farm, trainings: list[int]) -> None:
    measured(farm, 5)
    found = farm.context.trainer.up_to_date(DEVICE)
    assert not found.is_learned
    assert trainings == [5]
    assert versions(farm) == []


@pytest.mark.parametrize(
    ("training_s", "news", "is_due"),
    [
        (0.0, 0, False),
        (0.0, 1, True),
        (100 * EAGER_TRAINING_SHARE, 1, True),
        (101 * EAGER_TRAINING_SHARE, 1, False),
        (101 * EAGER_TRAINING_SHARE, 31, False),
        (101 * EAGER_TRAINING_SHARE, 32, True),
        (101 * MAX_TRAINING_SHARE, 10_000, False),
    ],
)
def test_training_takes_a_few_per_cent_of_the_time(training_s: float, news: int, is_due: bool) -> None:
    learned = TrainedModel(NOW, CostModel(), records=100, training_s=training_s)
    assert learned.is_due(news, NOW + 100, batch_size=32) is is_due


def test_a_model_of_many_records_waits_for_a_batch_of_new_records() -> None:
    learned = TrainedModel(NOW, CostModel(), records=5000, training_s=101 * EAGER_TRAINING_SHARE)
    assert not learned.is_due(int(5000 * BATCH_GROWTH) - 1, NOW + 100, batch_size=32)
    assert learned.is_due(int(5000 * BATCH_GROWTH), NOW + 100, batch_size=32)


def test_training_time_stays_within_its_share(farm: Farm, trainings: list[int]) -> None:
    for turn in range(100):
        measured(farm, 1, at=farm.now)
        farm.context.trainer.up_to_date(DEVICE)
        farm.now += 5.0
        assert turn < 10 or len(trainings) <= 1 + MAX_TRAINING_SHARE * (farm.now - NOW)
    assert len(trainings) > 10


def test_a_training_that_fails_leaves_the_last_model(
    farm: Farm, trainings: list[int], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    measured(farm, 40)
    before = farm.context.trainer.up_to_date(DEVICE).model
    measured(farm, 40, at=NOW + 5)
    farm.now += 1e6

    def fail(samples: object) -> CostModel:
        raise RuntimeError("no memory for trees")

    monkeypatch.setattr(training, "train", fail)
    assert farm.context.trainer.up_to_date(DEVICE).model is before
    assert "can't be trained: the last one stays" in caplog.text
    assert len(versions(farm)) == 1


def test_if_the_first_training_fails_the_estimate_is_used(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(samples: object) -> CostModel:
        raise RuntimeError("no memory for trees")

    monkeypatch.setattr(training, "train", fail)
    farm.submit()
    farm.plug_in()
    assert farm.finish().trials_done == 8
    assert not farm.context.trainer.models[DEVICE.key].is_learned


def test_metrics_are_computed_on_held_out_records(farm: Farm, trainings: list[int]) -> None:
    measured(farm, MIN_EVALUATED)
    measured(farm, 60, task=CONV)
    farm.context.trainer.up_to_date(DEVICE)
    [version] = versions(farm)
    found = version.metrics
    assert found is not None
    held = found["learned"]["records"]
    assert held == found["analytic"]["records"]
    assert held + found["trained_on"] == MIN_EVALUATED + 60
    assert 0.1 < held / (MIN_EVALUATED + 60) < 0.3
    assert found["tasks"].keys() == {MATMUL.workload_hash, CONV.workload_hash}
    assert sum(task["learned"]["records"] for task in found["tasks"].values()) == held
    assert found["learned"]["pairwise"] > found["analytic"]["pairwise"]
    assert found["learned"]["r2"] > 0


def test_metrics_describe_no_program_again(
    farm: Farm, trainings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    described: list[int] = []
    describe = policy.TuneContext.describe

    def counting(task: policy.TuneContext, population: Population) -> Any:
        described.append(len(population))
        return describe(task, population)

    monkeypatch.setattr(policy.TuneContext, "describe", counting)
    measured(farm, MIN_EVALUATED)
    farm.context.trainer.up_to_date(DEVICE)
    assert versions(farm)[0].metrics is not None
    assert sum(described) == MIN_EVALUATED


def test_metrics_are_computed_again_after_many_new_records(farm: Farm, trainings: list[int]) -> None:
    for number, count in enumerate((MIN_EVALUATED, 10, 50)):
        measured(farm, count, at=NOW + number)
        farm.now += 1e6
        farm.context.trainer.up_to_date(DEVICE)
    assert [version.metrics is None for version in versions(farm)] == [False, True, False]


def test_metrics_that_fail_are_left_out(
    farm: Farm, trainings: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(samples: object) -> CostModel:
        raise RuntimeError("no memory for trees")

    monkeypatch.setattr(evaluation, "train", fail)
    measured(farm, MIN_EVALUATED)
    assert farm.context.trainer.up_to_date(DEVICE).is_learned
    assert [version.metrics for version in versions(farm)] == [None]
