"""Interleaved timing of models with simulated durations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from core.measurement import Footprint, Measurement, Outcome, is_noisy
from worker.runner.interleaved import MAX_ROUNDS, MAX_S, ROUNDS, time_interleaved

CRASH = Measurement(Outcome.RUN_ERROR, error="the child was ended by SIGSEGV during the run")


@dataclass
class Machine:
    """A machine on which a call of each model takes `secs`; a turn is ten calls. `faults` has the turn in
    which a model crashes. Each turn is slower than the one before by the factor `drift`. For the first
    `disturbed` turns, every other one takes twice as long. For the first `slowed` turns, the machine runs at
    `speed`.
    """

    secs: dict[str, float]
    faults: dict[str, int] = field(default_factory=dict)
    drift: float = 1.0
    disturbed: int = 0
    slowed: int = 0
    speed: float = 0.5
    now: float = 0.0
    turns: list[str] = field(default_factory=list)
    told: dict[str, list[str]] = field(default_factory=dict)

    def run(self) -> dict[str, Measurement]:
        models = list(self.secs)
        found = asyncio.run(time_interleaved(models, self.first, self.again, lambda: self.now))
        return dict(zip(models, found, strict=True))

    async def first(self, model: str, before: Sequence[Measurement]) -> Measurement:
        self.told[model] = [measurement.outcome.value for measurement in before]
        return await self.again(model)

    async def again(self, model: str) -> Measurement:
        took_s = self.secs[model] * self.drift ** len(self.turns)
        if len(self.turns) < self.disturbed:
            took_s *= 1 + len(self.turns) % 2
        speed = self.speed if len(self.turns) < self.slowed else 1.0
        took_s /= speed
        self.turns.append(model)
        self.now += 10 * took_s
        if self.turns.count(model) == self.faults.get(model):
            return CRASH
        turn = len(self.turns)
        footprint = Footprint(turn * 1e-3, 1000 - turn)
        return Measurement(Outcome.OK, (took_s, took_s), footprint=footprint, speed=speed)


def test_models_take_turns_and_each_round_begins_with_another() -> None:
    machine = Machine({"a": 0.01, "b": 0.011, "c": 0.012})
    found = machine.run()
    assert "".join(machine.turns) == "abcbcacababcbca"
    assert {model: len(each.run_s) for model, each in found.items()} == dict.fromkeys("abc", 2 * ROUNDS)


def test_a_single_model_gets_all_turns() -> None:
    machine = Machine({"a": 0.01})
    found = machine.run()["a"]
    assert len(found.run_s) == 2 * ROUNDS
    assert found.footprint == Footprint(1e-3, 1000 - ROUNDS), "the least of all turns"


def test_a_slower_machine_affects_all_models_alike() -> None:
    """Timed one after the other, the second would seem to be half as fast."""
    found = Machine({"a": 0.01, "b": 0.01}, drift=1.05).run()
    assert found["b"].latency_s == pytest.approx(found["a"].latency_s, rel=0.16)
    assert max(found["a"].run_s) > 2 * min(found["a"].run_s)  # which the spread shows


def test_a_disturbed_machine_times_longer() -> None:
    """Until the disturbance is a small part of the repeats, or all rounds are used."""
    machine = Machine({"a": 0.01}, disturbed=6)
    assert machine.run()["a"].latency_s == 0.01
    assert ROUNDS < len(machine.turns) < 2 * MAX_ROUNDS
    forever = Machine({"a": 0.01, "b": 0.01}, disturbed=1000)
    assert is_noisy(forever.run()["a"].run_s)
    assert len(forever.turns) == 2 * MAX_ROUNDS


def test_rounds_on_a_slow_machine_do_not_count_if_it_recovers() -> None:
    """The rounds count or not for all models alike, because they are compared."""
    machine = Machine({"a": 0.01, "b": 0.011}, slowed=2 * 3 + 1)
    found = machine.run()
    assert found["a"].run_s == (0.01,) * 2 * ROUNDS
    assert found["b"].run_s == (0.011,) * 2 * ROUNDS
    assert len(machine.turns) == 2 * (4 + ROUNDS)
    assert found["a"].speed == 1.0


def test_a_machine_that_stays_slow_is_timed_as_it_is() -> None:
    machine = Machine({"a": 0.01, "b": 0.011}, slowed=1000)
    found = machine.run()
    assert found["a"].run_s == (0.02,) * 2 * MAX_ROUNDS
    assert found["a"].speed == found["b"].speed == 0.5
    mild = Machine({"a": 0.01}, slowed=1000, speed=0.9)
    assert len(mild.run()["a"].run_s) == 2 * ROUNDS


def test_a_model_of_the_first_round_alone_keeps_its_slow_turn() -> None:
    machine = Machine({"untuned": 0.4, "tuned": 0.01}, slowed=2)
    found = machine.run()
    assert found["untuned"].run_s == (0.8, 0.8)
    assert found["tuned"].run_s == (0.01,) * 2 * ROUNDS


def test_a_failure_on_a_slow_machine_is_a_failure() -> None:
    machine = Machine({"a": 0.01, "b": 0.01}, slowed=2, faults={"a": 1})
    found = machine.run()
    assert found["a"] == CRASH
    assert len(found["b"].run_s) == 2 * ROUNDS


def test_a_clearly_slower_model_gets_one_turn() -> None:
    machine = Machine({"untuned": 0.4, "tuned": 0.01, "published": 0.012})
    found = machine.run()
    assert machine.turns.count("untuned") == 1
    assert found["untuned"].run_s == (0.4, 0.4)
    assert machine.turns.count("tuned") == machine.turns.count("published") == ROUNDS


def test_slow_models_get_fewer_turns() -> None:
    machine = Machine({"a": 31.0, "b": 32.0})
    machine.run()
    assert machine.turns == ["a", "b", "b"]
    assert MAX_S < 10 * 31.0


@pytest.mark.parametrize("turn", range(1, ROUNDS + 1))
@pytest.mark.parametrize("model", ["a", "b", "c"])
def test_a_model_that_crashes_leaves_the_other_timings_complete(model: str, turn: int) -> None:
    machine = Machine({"a": 0.01, "b": 0.011, "c": 0.012}, faults={model: turn})
    found = machine.run()
    assert found.pop(model) == CRASH
    assert machine.turns.count(model) == turn
    assert {len(each.run_s) for each in found.values()} == {2 * ROUNDS}


def test_a_models_first_turn_gets_the_outcomes_of_earlier_models() -> None:
    machine = Machine({"a": 0.01, "b": 0.01, "c": 0.01}, faults={"a": 1, "c": 1})
    machine.run()
    assert machine.told == {"a": [], "b": ["run_error"], "c": ["run_error", "ok"]}


def test_if_all_models_crash_all_runs_fail() -> None:
    found = Machine({"a": 0.01, "b": 0.01}, faults={"a": 1, "b": 1}).run()
    assert found == {"a": CRASH, "b": CRASH}
