"""Rounds issue trials when they are due, within the budget, and end when none are left."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xgboost
from sqlalchemy import update
from sqlalchemy.orm import Session

from compiler.lowering.trace import LoweringError, lower
from core.job import Budget, EndReason, JobState
from core.measurement import Measurement, Outcome
from core.worker import WorkerState
from records.fleet import workers
from records.fleet.leases import LeasedTrial
from records.fleet.workers import WorkerSession
from records.jobs import jobs, trials
from records.jobs.jobs import Job
from records.jobs.trials import FALLBACK, NewTrial, Trial
from records.schedules.schedules import Record
from records.storage.tables import WorkerRow
from scheduler.context import Context
from scheduler.learning.training import TrainedModel
from scheduler.planning import batch
from scheduler.planning.disturbed import MAX_TIMES
from scheduler.planning.job_snapshot import read_snapshot
from scheduler.planning.task_history import TaskHistory
from scheduler.steps import rounds, tvmscripts
from scheduler.steps.drive import drive
from search.cost.features import NUM_FEATURES
from search.cost.model import CostModel
from search.policy import Proposal, TuneContext, propose
from search.programs.annotate import sample
from search.programs.program import Program
from search.remeasurement import MAX_MEASUREMENTS
from tests.devices import GPU
from tests.unit.scheduler.farm import CONV, DEVICE, MATMUL, FakeCompiler, Farm, measure, search_quickly

Measured = Sequence[tuple[Program, float]]
LEARNED = CostModel(xgboost.Booster())  # never asked here


def begin(farm: Farm, **request: Any) -> None:
    """A job whose first batch waits for the device."""
    farm.submit(**request)
    farm.plug_in()
    farm.context.wake("intake", "job")
    farm.drain()


def register_others(farm: Farm, count: int) -> None:
    """Register more workers of the farm's device class."""
    with farm.database.begin() as session:
        for number in range(count):
            worker = WorkerSession(f"other {number}", f"session {number}", WorkerState.READY, DEVICE)
            workers.register(session, worker, farm.now)


def pending(farm: Farm) -> int:
    with farm.database.begin() as session:
        return trials.counts(session, "job").pending


def plan(farm: Farm) -> None:
    farm.context.wake("round", "job")
    farm.drain()


def test_a_batch_starts_with_every_task_the_heaviest_first(farm: Farm) -> None:
    begin(farm)
    assert Counter(trial.workload_hash for trial in farm.trials()) == {
        MATMUL.workload_hash: 2,
        CONV.workload_hash: 2,
    }


def test_the_next_batch_waits_until_the_last_is_measured(farm: Farm) -> None:
    begin(farm)
    farm.work(limit=3)
    plan(farm)
    assert pending(farm) == 1
    farm.work()
    plan(farm)
    assert pending(farm) == 4


def test_planning_ahead_keeps_a_batch_waiting(farm: Farm) -> None:
    farm.restart(plan_ahead=1)
    begin(farm, trials=20)
    plan(farm)
    assert pending(farm) == 8
    assert farm.lease(limit=4) is not None
    plan(farm)
    assert pending(farm) == 4
    farm.work()
    plan(farm)
    assert pending(farm) == 4


def test_a_batch_is_planned_during_a_lease_that_took_all_others(farm: Farm) -> None:
    farm.device = GPU
    begin(farm, trials=20)
    plan(farm)
    lease = farm.lease()
    assert lease is not None
    assert len(lease.trials) == 8
    farm.report(lease, limit=3)
    farm.drain()
    assert pending(farm) == 0
    farm.report(lease, limit=4)
    farm.drain()
    assert pending(farm) == 4, "four others are being measured"


def test_a_gpu_never_waits_for_a_plan_on_shared_cores(farm: Farm) -> None:
    farm.device = GPU
    begin(farm, trials=20)
    plan(farm)
    assert pending(farm) == 8
    farm.work(limit=4)
    plan(farm)
    assert pending(farm) == 8


@pytest.mark.parametrize("budget", [1, 3, 5, 9])
def test_the_budget_is_spent_exactly(farm: Farm, budget: int) -> None:
    farm.restart(plan_ahead=1)
    farm.submit(trials=budget)
    farm.plug_in()
    # Every subgraph gets its first guess.
    farm.finish()
    assert len([trial for trial in farm.trials() if trial.program != FALLBACK]) == max(budget, 2)


def test_after_the_minutes_only_leased_trials_and_first_guesses_are_measured(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.unit.scheduler import farm as world

    monkeypatch.setattr(world, "measure", lambda trial: Measurement(Outcome.OK, (1e-3,)))
    begin(farm, trials=100, minutes=2.0)
    lease = farm.lease(limit=1)
    assert lease is not None
    farm.now += 121
    farm.plug_in()
    plan(farm)
    assert (farm.job().state, pending(farm)) == (JobState.TUNING, 0)
    with farm.database.begin() as session:
        assert trials.counts(session, "job").leased == 1
    farm.now -= 100
    farm.report(lease)
    farm.now += 100
    farm.drain()
    plan(farm)
    (leased,), (guess,) = lease.trials, [trial for trial in farm.trials() if trial.state == "pending"]
    assert {leased.workload_hash, guess.workload_hash} == {MATMUL.workload_hash, CONV.workload_hash}
    farm.work()
    farm.drain()
    assert farm.job().state is JobState.PUBLISHING
    job = farm.finish()
    assert (job.state, job.trials_done) == (JobState.DONE, 2)


def test_a_continuing_job_replaces_the_waiting_message(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.unit.scheduler import farm as world

    monkeypatch.setattr(world, "measure", lambda trial: Measurement(Outcome.OK, (1e-3,)))
    begin(farm, trials=2)
    farm.work()
    farm.wakes.clear()
    with farm.database.begin() as session:
        jobs.set_message(session, "job", f"waiting for a device of class {DEVICE.key}: start a worker on it")
    rounds.run(farm.context, farm.job())
    job = farm.job()
    message = "compiling the model with the best schedules: all trials were spent"
    assert (job.state, job.message) == (JobState.PUBLISHING, message)


def test_a_later_job_starts_from_earlier_measurements(farm: Farm) -> None:
    farm.submit()
    farm.plug_in()
    farm.finish()
    first = {(trial.workload_hash, trial.trace) for trial in farm.trials()}
    best = {task.name: task.best_s for task in farm.tasks()}
    farm.submit("again", seed=8)
    job = farm.finish("again")
    assert job.trials_done == 8
    assert not any((t.workload_hash, t.trace) in first for t in farm.trials("again") if t.repeat == 0)
    for task in farm.tasks("again"):
        assert (task.best_s or 1.0) <= (best[task.name] or 1.0)


def test_a_small_budget_is_shared_among_all_tasks(farm: Farm) -> None:
    farm.restart(trials_per_pick=4)
    farm.submit(trials=4)
    farm.plug_in()
    farm.finish()
    assert Counter(t.workload_hash for t in farm.trials()) == {MATMUL.workload_hash: 2, CONV.workload_hash: 2}


def test_a_task_whose_candidates_are_all_hopeless_gives_way(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search proposes nothing for the convolution, so the other task gets its trials."""

    def proposed(task: TuneContext, model: CostModel, *args: Any, **more: Any) -> list[Proposal]:
        slow = "conv" in task.dag.name or len(task.dag.nodes) > 1
        return [] if slow and model.is_learned else search_quickly(task, CostModel(), *args, **more)

    monkeypatch.setattr(batch, "propose", proposed)
    begin(farm, trials=16)
    farm.context.trainer.models[DEVICE.key].model = LEARNED
    monkeypatch.setattr(TrainedModel, "is_due", lambda *args: False)
    assert farm.finish().trials_done == 16
    counts = Counter(trial.workload_hash for trial in farm.trials() if not trial.repeat)
    assert counts[CONV.workload_hash] == 2
    assert counts[MATMUL.workload_hash] > 8


def test_the_same_seed_gives_the_same_trials(farm: Farm) -> None:
    """This holds even if the process died before the first plan was stored."""
    begin(farm)
    first = [trial.trace for trial in farm.trials()]
    with farm.database.begin() as session:
        trials.drop_pending(session, "job")
    farm.submit("again")
    farm.restart()
    farm.context.wake("intake", "again")
    farm.drain()
    assert [trial.trace for trial in farm.trials("again")] == first


def test_another_seed_gives_other_trials(farm: Farm) -> None:
    begin(farm)
    farm.submit("other", seed=8)
    farm.context.wake("intake", "other")
    farm.drain()
    assert {t.trace for t in farm.trials("other")} != {t.trace for t in farm.trials()}


def test_an_exhausted_space_ends_the_tuning_early(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    def three(
        task: TuneContext,
        model: object,
        measured: Measured,
        count: int,
        rng: object,
        exclude: set[Program],
        initial_programs: object,
        known: object,
    ) -> list[Proposal]:
        population = sample(task.sketches[0], 16, np.random.default_rng(0))
        known = {program for program, _ in measured} | exclude
        programs = [population.program(row) for row in range(3)]
        features = np.zeros(NUM_FEATURES, np.float32)
        return [Proposal(one, 1e-3, 2e-3, features) for one in programs if one not in known][:count]

    monkeypatch.setattr(batch, "propose", three)
    farm.submit(trials=50)
    farm.plug_in()
    assert farm.finish().state is JobState.DONE
    assert sum(trial.repeat == 0 for trial in farm.trials()) == 6


def test_refused_programs_are_replaced_and_never_asked_for_again(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Program] = []

    def picky(module: object, program: Program, device: object) -> str:
        asked.append(program)
        if len(asked) % 2:
            raise LoweringError("refused")
        return lower(module, program, DEVICE)

    monkeypatch.setattr(batch, "lower", picky)
    farm.submit()
    farm.plug_in()
    assert farm.finish().trials_done == 8
    assert len(asked) == len(set(asked)) > 8


def test_a_job_ends_if_every_program_is_refused(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(module: object, program: object, device: object) -> str:
        raise LoweringError("refused")

    monkeypatch.setattr(batch, "lower", refuse)
    farm.submit()
    farm.plug_in()
    job = farm.finish()
    assert (job.state, job.trials_issued) == (JobState.DONE, 0)


def test_programs_with_the_same_trace_are_one_trial(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch, "lower", lambda module, program, device: str(sum(program.values) % 5))
    farm.submit(trials=50)
    farm.plug_in()
    job = farm.finish()
    assert job.state is JobState.DONE
    issued = [(trial.workload_hash, trial.trace, trial.repeat) for trial in farm.trials()]
    assert len(issued) == len(set(issued)) == job.trials_done
    assert len({one[:2] for one in issued}) <= 10


def test_an_exhausted_search_waits_for_new_records(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    farm.restart(plan_ahead=1)
    begin(farm)
    calls: list[int] = []

    def propose_nothing(*_args: Any, **_more: Any) -> list[Any]:
        calls.append(1)
        return []

    monkeypatch.setattr(batch, "propose", propose_nothing)
    plan(farm)
    count = len(calls)
    assert count > 0
    for _ in range(5):
        plan(farm)
    assert len(calls) == count
    farm.work(limit=1)
    plan(farm)
    assert len(calls) > count
    assert farm.job().state is JobState.TUNING


def test_a_program_of_an_older_space_counts_but_is_not_parsed(farm: Farm) -> None:
    begin(farm)
    [space] = farm.context.spaces.load([MATMUL.workload_hash], DEVICE).values()
    [first, *_] = [t for t in farm.trials() if t.workload_hash == MATMUL.workload_hash]
    gone = {"sketch": "gone", "values": [1]}
    old = replace(first, trace="old", program=gone, state="done", outcome=Outcome.OK, run_s=(2e-3,))
    gathered = TaskHistory.gather(space, [], [old])
    assert (gathered.measured_programs, gathered.latencies) == ([], (2e-3,))
    assert space.program("damaged", {"sketch": None, "values": "no"}) is None


def test_measured_records_of_imported_schedules_are_part_of_the_history(farm: Farm) -> None:
    begin(farm)
    trial = farm.trials()[0]
    record = Record(
        workload_hash=trial.workload_hash,
        device_class=DEVICE.key,
        trace="imported",
        program=None,
        latency_s=1e-6,
        run_s=(1e-6,),
        outcome=Outcome.OK,
        target="",
        source="trial",
        created_at=0.0,
    )
    [space] = farm.context.spaces.load([trial.workload_hash], DEVICE).values()
    gathered = TaskHistory.gather(space, [record], [trial])
    assert gathered.latencies == (1e-6,)
    assert gathered.has("imported")
    assert gathered.has(trial.trace)
    assert (gathered.measured_programs, gathered.open_traces) == ([], (trial.trace,))


class TestRemeasurement:
    """A lucky measurement must not get a program published."""

    def test_a_program_that_was_timed_too_fast_is_corrected(
        self, farm: Farm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lucky: set[str] = set()

        def measured_luckily(trial: LeasedTrial) -> Measurement:
            """The first program of each workload seems to be much faster than it is, the first time."""
            usual = measure(trial)
            if trial.workload_hash in lucky or usual.outcome is not Outcome.OK:
                return usual
            lucky.add(trial.workload_hash)
            return Measurement(Outcome.OK, (1e-5,))

        monkeypatch.setattr("tests.unit.scheduler.farm.measure", measured_luckily)
        begin(farm, trials=60)
        farm.finish()
        repeats = [trial for trial in farm.trials() if trial.repeat]
        assert {trial.workload_hash for trial in repeats} == {MATMUL.workload_hash, CONV.workload_hash}
        for task in farm.tasks():
            best = min(r.latency_s or 1.0 for r in farm.records() if r.workload_hash == task.workload_hash)
            assert task.best_s == best > 1e-5

    def test_all_repeats_of_a_program_count(self, farm: Farm) -> None:
        begin(farm, trials=60)
        farm.finish()
        again = max((t for t in farm.trials() if t.run_s), key=lambda trial: trial.repeat)
        assert again.repeat > 0
        assert len(again.run_s) == again.repeat + 1
        [record] = [
            r for r in farm.records() if (r.workload_hash, r.trace) == (again.workload_hash, again.trace)
        ]
        assert record.run_s == again.run_s

    def test_a_failed_remeasurement_keeps_the_first_seconds(self, farm: Farm) -> None:
        trial, again = self._twice(farm, Outcome.RUN_ERROR)
        assert self._gathered(farm, trial, again).measured[trial.trace].seconds == 2e-3

    def test_a_wrong_remeasurement_revokes_the_first_result(self, farm: Farm) -> None:
        trial, again = self._twice(farm, Outcome.WRONG_RESULT)
        assert math.isinf(self._gathered(farm, trial, again).measured[trial.trace].seconds)

    def test_leased_programs_are_not_remeasured(self, farm: Farm) -> None:
        trial, again = self._twice(farm, Outcome.OK)
        waiting = replace(again, state="leased", outcome=None)
        assert [one.trace for one in self._gathered(farm, trial).to_remeasure(1)] == [trial.trace]
        assert self._gathered(farm, trial, waiting).to_remeasure(1) == []

    def _twice(self, farm: Farm, outcome: Outcome) -> tuple[Trial, Trial]:
        begin(farm)
        [first, *_] = [t for t in farm.trials() if t.workload_hash == MATMUL.workload_hash]
        trial = replace(first, state="done", outcome=Outcome.OK, run_s=(2e-3,))
        secs = (2e-3, 2e-3) if outcome is Outcome.OK else ()
        return trial, replace(trial, id=trial.id + 1, repeat=1, outcome=outcome, run_s=secs)

    def _gathered(self, farm: Farm, *tried: Trial) -> TaskHistory:
        [space] = farm.context.spaces.load([MATMUL.workload_hash], DEVICE).values()
        return TaskHistory.gather(space, [], tried)


class TestDisturbedMeasurements:
    """A measurement whose repeats spread too much isn't the last word on the best program."""

    @pytest.fixture
    def disturbed(self, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
        """The number of a program's next measurements that are disturbed, by its trace."""
        left: Counter[str] = Counter()

        def measured(trial: LeasedTrial) -> Measurement:
            usual = measure(trial)
            if not left[trial.trace] or usual.outcome is not Outcome.OK:
                return usual
            left[trial.trace] -= 1
            secs = usual.latency_s
            return Measurement(Outcome.OK, (secs, 160 * secs, 200 * secs))

        monkeypatch.setattr("tests.unit.scheduler.farm.measure", measured)
        return left

    def test_the_best_program_is_measured_again_whatever_the_budget(
        self, farm: Farm, disturbed: Counter[str]
    ) -> None:
        farm.restart(trials_per_pick=1)
        begin(farm, trials=2)
        disturbed.update(trial.trace for trial in farm.trials())
        job = farm.finish()
        good = [trial for trial in farm.trials() if trial.run_s]
        again = [trial for trial in good if trial.repeat]
        assert {trial.workload_hash for trial in again} == {trial.workload_hash for trial in good}
        assert all(task.best_s is None or task.best_s < 3e-3 for task in farm.tasks())
        assert all(len(trial.run_s) == 1 for trial in again), "without the disturbed repeats"
        assert job.trials_done == 2 + len(again)

    def test_a_device_that_is_always_disturbed_does_not_hold_a_job(
        self, farm: Farm, disturbed: Counter[str]
    ) -> None:
        begin(farm, trials=2)
        disturbed.update({trial.trace: 100 for trial in farm.trials()})
        farm.finish()
        assert max(trial.repeat for trial in farm.trials()) == MAX_MEASUREMENTS - 1

    def test_a_slow_repeat_does_not_replace_the_disturbed_seconds(
        self, farm: Farm, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The timing of a program that seems slow ends after one call, so its seconds have no spread."""
        seen: set[str] = set()

        def measured(trial: LeasedTrial) -> Measurement:
            usual = measure(trial)
            if usual.outcome is not Outcome.OK:
                return usual
            is_repeat = trial.trace in seen
            seen.add(trial.trace)
            return Measurement(Outcome.OK, (9.0,) if is_repeat else (2e-3,) * 7 + (0.3,) * 2)

        monkeypatch.setattr("tests.unit.scheduler.farm.measure", measured)
        begin(farm, trials=2)
        farm.finish()
        assert any(trial.repeat for trial in farm.trials())
        assert {task.best_s for task in farm.tasks()} <= {2e-3, None}

    @pytest.mark.parametrize("slow_first", [True, False])
    def test_seconds_of_a_slow_device_do_not_count(
        self, farm: Farm, slow_first: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: set[str] = set()

        def measured(trial: LeasedTrial) -> Measurement:
            usual = measure(trial)
            if usual.outcome is not Outcome.OK:
                return usual
            speed = 0.5 if (trial.trace not in seen) == slow_first else 1.0
            seen.add(trial.trace)
            return replace(usual, run_s=(usual.latency_s / speed,), speed=speed)

        monkeypatch.setattr("tests.unit.scheduler.farm.measure", measured)
        begin(farm, trials=64)
        farm.finish()
        first = {trial.trace: trial.run_s for trial in farm.trials() if not trial.repeat}
        again = [trial for trial in farm.trials() if trial.repeat and trial.run_s]
        assert again
        for trial in again:
            [secs] = first[trial.trace]
            assert set(trial.run_s) == {secs / 2 if slow_first else secs}

    def test_a_large_network_is_measured_again_where_it_takes_most_time(
        self, farm: Farm, disturbed: Counter[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("scheduler.planning.disturbed.MIN_SCHEDULES", 1)
        farm.restart(trials_per_pick=1)
        begin(farm, trials=2)
        disturbed.update(trial.trace for trial in farm.trials())
        job = farm.finish()
        again = [trial for trial in farm.trials() if trial.repeat]
        assert len(again) == min(MAX_TIMES, len(farm.tasks())) == job.trials_done - 2
        most = {task.workload_hash: task.weight * (task.best_s or 0.0) for task in farm.tasks()}
        assert again[0].workload_hash == max(most, key=most.__getitem__)

    def test_a_reached_latency_does_not_prevent_it(self, farm: Farm, disturbed: Counter[str]) -> None:
        begin(farm, budget=Budget(100, latency_s=10.0))
        disturbed.update(trial.trace for trial in farm.trials())
        job = farm.finish()
        assert job.end_reason is EndReason.LATENCY
        assert {trial.repeat for trial in farm.trials()} == {0, 1}
        assert all(task.best_s is None or task.best_s < 3e-3 for task in farm.tasks())

    def test_the_best_program_is_in_the_next_batch(self, farm: Farm) -> None:
        begin(farm)
        [first, *_] = [t for t in farm.trials() if t.workload_hash == MATMUL.workload_hash]
        trial = replace(first, state="done", outcome=Outcome.OK, run_s=(2e-3, 0.3, 0.4))
        [space] = farm.context.spaces.load([MATMUL.workload_hash], DEVICE).values()
        faster = replace(trial, id=trial.id + 1, trace="faster", run_s=(1e-3,) * 3)

        def doubtful(*tried: Trial) -> str | None:
            found = TaskHistory.gather(space, [], tried).doubtful
            return None if found is None else found.trace

        assert doubtful(trial) == trial.trace
        assert doubtful(trial, faster) is None, "only the best matters"
        assert doubtful(trial, replace(trial, id=9, repeat=1, state="leased", outcome=None, run_s=())) is None
        assert doubtful(trial, replace(trial, id=9, repeat=MAX_MEASUREMENTS - 1)) is None, "often enough"
        [chosen, *_] = TaskHistory.gather(space, [], [trial]).to_remeasure(1)
        assert chosen.trace == trial.trace


def test_every_batch_ends_a_round(farm: Farm) -> None:
    def rounds() -> int:
        with farm.database.begin() as session:
            return read_snapshot(
                session, jobs.get(session, "job"), (), farm.context.record_cache, farm.context.trial_cache
            ).round

    begin(farm)
    assert rounds() == 1
    plan(farm)
    assert rounds() == 1, "the batch waits for the device"
    farm.work()
    plan(farm)
    assert rounds() == 2


def test_wake_ups_only_count_open_trials_while_there_are_enough(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    claimed: list[str] = []
    claim_job = jobs.claim_job

    def note_claim(session: Session, job_id: str, *args: Any) -> bool:
        claimed.append(job_id)
        return claim_job(session, job_id, *args)

    def wake() -> None:
        claimed.clear()
        drive(farm.context, "round", "job")

    begin(farm)
    monkeypatch.setattr(jobs, "claim_job", note_claim)
    wake()
    assert claimed, "it isn't known yet whether there are enough"
    wake()
    assert not claimed
    farm.now += rounds.LOOK_INTERVAL_S
    wake()
    assert claimed, "the job may have reached a goal"
    issued = len(farm.trials())
    farm.work()
    wake()
    assert claimed
    assert len(farm.trials()) > issued


def test_two_planners_at_once_stay_within_the_budget(farm: Farm) -> None:
    """Claims prevent this; if one lapses during a slow plan, the budget holds anyway."""
    begin(farm, trials=6)
    task = farm.tasks()[0]
    with farm.database.begin() as session:
        new = [NewTrial(task.id, task.workload_hash, None, f"rival {n}", 1.0) for n in range(2)]
        trials.add(session, "job", 0, new, farm.now)
    farm.settings = farm.settings.model_copy(update={"plan_ahead": 8})
    farm.restart()
    plan(farm)
    assert farm.job().trials_issued == 6


def test_the_real_search_and_the_learned_model_work_here(
    farm: Farm, compiler: FakeCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch, "propose", propose)
    farm.restart(batch_size=12, trials_per_pick=6)
    farm.submit(trials=60)
    farm.plug_in()
    job = farm.finish()
    assert job.trials_done == 60
    assert farm.context.trainer.models[DEVICE.key].is_learned
    assert {trial.outcome for trial in farm.trials()} > {Outcome.OK}


def test_programs_are_shown_once_in_a_while(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds may follow each other within a second."""
    looks: list[float] = []
    store_missing = tvmscripts.store_missing

    def looking(context: Context, job: Job) -> None:
        looks.append(farm.now)
        store_missing(context, job)

    monkeypatch.setattr(tvmscripts, "store_missing", looking)
    begin(farm, trials=60)
    assert looks == [1000.0]
    while farm.job().state is JobState.TUNING:
        farm.tick()
    during = [at for at in looks if at < farm.now - 5]
    assert len(during) == 1 + (during[-1] - 1000.0) // tvmscripts.INTERVAL_S > 2
    farm.finish()
    assert looks[-1] > during[-1], "at the end, the last best programs are stored"


def test_a_batch_grows_with_the_devices_of_the_class(farm: Farm) -> None:
    """Ten devices measure more than a batch while the next is planned. A small budget is divided anyway."""
    farm.restart(plan_ahead=1)
    register_others(farm, 10)
    begin(farm, trials=160)
    plan(farm)
    assert pending(farm) == 20
    for _ in range(4):
        farm.work()
    assert pending(farm) < 16
    plan(farm)
    assert pending(farm) > 20


def test_rounds_are_planned_before_a_fleet_runs_out_of_trials(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten devices measure 20 trials a second, and a round takes two seconds, so 80 trials are kept ready."""
    plan_batch = batch.plan_batch

    def take_two_seconds(*arguments: Any, **named: Any) -> Any:
        farm.now += 2.0
        return plan_batch(*arguments, **named)

    monkeypatch.setattr(rounds, "plan_batch", take_two_seconds)
    farm.restart(plan_ahead=1)
    register_others(farm, 9)
    begin(farm, trials=1000)
    with farm.database.begin() as session:
        session.execute(update(WorkerRow).values(trial_s=0.5))
    counts = []
    for _ in range(8):
        plan(farm)
        counts.append(pending(farm))
    assert counts[-2] == counts[-1] in range(80, 100)


def test_a_batch_holds_what_devices_measure_while_it_is_planned(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten devices measure 20 trials a second. Their 40 trials don't last for a round of 4 or 12 seconds."""
    plan_batch, planning_s, sizes = batch.plan_batch, 4.0, []

    def take_seconds(*arguments: Any, **named: Any) -> Any:
        farm.now += planning_s
        sizes.append(arguments[3])
        return plan_batch(*arguments, **named)

    monkeypatch.setattr(rounds, "plan_batch", take_seconds)
    farm.restart(plan_ahead=1)
    register_others(farm, 9)
    begin(farm, trials=10_000)
    with farm.database.begin() as session:
        session.execute(update(WorkerRow).values(trial_s=0.5))
    plan(farm)
    planning_s = 12.0
    plan(farm)
    plan(farm)
    per_s = 20 * rounds.BATCH_MARGIN
    assert sizes[-3:] == [4 * per_s, 4 * per_s, rounds.MAX_TRIALS_PER_DEVICE * 10]


def test_the_first_trials_of_a_batch_are_issued_while_the_rest_is_planned(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_batch, waiting = batch.plan_batch, []

    def counted(*arguments: Any, **named: Any) -> Any:
        for trial in plan_batch(*arguments, **named):
            waiting.append(pending(farm))
            yield trial

    monkeypatch.setattr(rounds, "plan_batch", counted)
    monkeypatch.setattr(rounds, "STORED_TOGETHER", 3)
    farm.restart(batch_size=8)
    begin(farm, trials=8)
    assert waiting[-8:] == [0, 0, 0, 3, 3, 3, 6, 6]
    assert pending(farm) == 8
    assert farm.finish().trials_done == 8


def test_no_more_trials_are_issued_once_a_job_is_cancelled(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_batch, planned = batch.plan_batch, []

    def cancelling(*arguments: Any, **named: Any) -> Any:
        for trial in plan_batch(*arguments, **named):
            planned.append(trial)
            if len(planned) == 5:
                with farm.database.begin() as session:
                    jobs.cancel(session, "job", farm.now)
            yield trial

    monkeypatch.setattr(rounds, "plan_batch", cancelling)
    monkeypatch.setattr(rounds, "STORED_TOGETHER", 3)
    farm.restart(batch_size=9)
    begin(farm, trials=9)
    assert len(planned) == 6
    assert pending(farm) == 0
    assert farm.job().state is JobState.CANCELLED
