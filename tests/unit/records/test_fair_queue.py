from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy.orm import Session

from core.device import Device
from core.worker import DesiredState, WorkerState
from records.fleet import fair_queue, leases, module_runs, workers
from records.fleet.fair_queue import JobShare, Quota, order
from records.fleet.leases import StoredLease
from records.fleet.results import LeaseResult
from records.fleet.workers import WorkerSession
from records.jobs import trials
from records.storage import blobs
from records.storage.database import Database
from tests.devices import DEVICE
from tests.unit.records.farm import Farm, all_at_once, make_job, measured

WEIGHTS = st.sampled_from([0.25, 0.5, 1.0, 1.0, 2.0, 3.0, 10.0])
_NUMBERS = itertools.count()


@dataclass
class Queue:
    """Simulates the shares of a few jobs, lease by lease, without a database."""

    shares: list[JobShare]

    def serve(self, size: int) -> str | None:
        entries = order(self.shares)
        if not entries:
            return None
        first = entries[0]
        finish_tag = first.start_tag + size / first.weight
        self._change(first.job_id, start_tag=first.start_tag, finish_tag=finish_tag)
        return first.job_id

    def wait(self, job_id: str, waits: bool) -> None:
        self._change(job_id, waits=waits)

    def _change(self, job_id: str, **changes: float | bool) -> None:
        self.shares = [
            replace(one, **changes) if one.job_id == job_id else one  # type: ignore[arg-type]
            for one in self.shares
        ]


def share(number: int, weight: float = 1.0, priority: int = 0, *, waits: bool = True) -> JobShare:
    return JobShare(f"job {number}", priority, weight, float(number), 0.0, 0.0, waits)


class TestOrder:
    @given(weights=st.lists(WEIGHTS, min_size=1, max_size=5), sizes=st.lists(st.integers(1, 16), min_size=9))
    def test_shares_follow_the_weights(self, weights: list[float], sizes: list[int]) -> None:
        queue = Queue([share(number, weight) for number, weight in enumerate(weights)])
        got: Counter[str | None] = Counter()
        for _, size in zip(range(400), itertools.cycle(sizes), strict=False):
            got[queue.serve(size)] += size
        lag = max(sizes)
        for one, other in itertools.combinations(queue.shares, 2):
            apart = abs(got[one.job_id] / one.weight - got[other.job_id] / other.weight)
            assert apart <= lag / one.weight + lag / other.weight + 1e-6

    @given(priorities=st.lists(st.integers(-2, 2), min_size=2, max_size=6))
    def test_the_highest_waiting_priority_comes_first(self, priorities: list[int]) -> None:
        queue = Queue([share(number, 1.0, priority) for number, priority in enumerate(priorities)])
        levels = []
        while (served := queue.serve(8)) is not None:
            levels.append(priorities[int(served.split()[1])])
            queue.wait(served, waits=False)
        assert levels == sorted(priorities, reverse=True)

    @given(weights=st.lists(WEIGHTS, min_size=2, max_size=4), leases_before=st.integers(1, 300))
    def test_a_job_without_work_delays_no_other_and_saves_no_share(
        self, weights: list[float], leases_before: int
    ) -> None:
        idle, *others = [share(number, weight) for number, weight in enumerate(weights)]
        queue = Queue([replace(idle, waits=False), *others])
        assert {queue.serve(4) for _ in range(leases_before)} <= {one.job_id for one in others}
        queue.wait(idle.job_id, waits=True)
        got = Counter(queue.serve(4) for _ in range(200))
        for other in others:
            apart = got[idle.job_id] / idle.weight - got[other.job_id] / other.weight
            assert apart <= 1 / idle.weight + 1 / other.weight + 1e-6

    @given(weights=st.lists(WEIGHTS, min_size=1, max_size=4), leases_before=st.integers(1, 300))
    def test_a_new_job_is_served_at_once(self, weights: list[float], leases_before: int) -> None:
        queue = Queue([share(number, weight) for number, weight in enumerate(weights)])
        for _ in range(leases_before):
            queue.serve(16)
        queue.shares.append(share(9))
        assert "job 9" in [queue.serve(16) for _ in range(len(weights) + 1)]

    def test_the_oldest_of_equal_jobs_comes_first(self) -> None:
        twins = [replace(share(1), job_id="b"), replace(share(1), job_id="a"), share(0)]
        assert [entry.job_id for entry in order(twins)] == ["job 0", "a", "b"]

    def test_without_waiting_jobs_the_queue_is_empty(self) -> None:
        assert order([share(0, waits=False)]) == []


def another_class() -> Device:
    """Each example of a property has the database to itself."""
    return replace(DEVICE, toolchain=f"toolchain {next(_NUMBERS)}")


def take(session: Session, device: Device, limit: int = 8, worker: str = "worker") -> StoredLease | None:
    name = f"lease {next(_NUMBERS)}"
    return leases.acquire_lease(
        session,
        name,
        WorkerSession(worker, "session", WorkerState.READY, device),
        limit,
        now=20.0,
        ttl_s=60.0,
    )


def issue(farm: Farm, count: int) -> None:
    farm.issue(*(f"{farm.job_id} {next(_NUMBERS)}" for _ in range(count)))


def serve(session: Session, device: Device, leases_: int, limit: int) -> Counter[str]:
    """Return how many trials of each job the next leases hold."""
    got: Counter[str] = Counter()
    for _ in range(leases_):
        lease = take(session, device, limit)
        assert lease is not None
        got[lease.job_id] += len(lease.trials)
    return got


class TestInTheDatabase:
    @settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(weights=st.lists(WEIGHTS, min_size=2, max_size=3), limit=st.integers(1, 3))
    def test_shares_follow_the_weights(self, session: Session, weights: list[float], limit: int) -> None:
        device = another_class()
        farms = [make_job(session, f"job {next(_NUMBERS)}", device, weight=weight) for weight in weights]
        for farm in farms:
            issue(farm, 20 * limit)
        got = serve(session, device, 20, limit)
        for (one, mine), (other, theirs) in itertools.combinations(zip(farms, weights, strict=True), 2):
            apart = abs(got[one.job_id] / mine - got[other.job_id] / theirs)
            assert apart <= limit / mine + limit / theirs + 1e-6

    def test_priority_comes_before_age_and_weight(self, session: Session) -> None:
        plain = make_job(session, "plain", now=1.0, weight=1000.0)
        urgent = make_job(session, "urgent", now=2.0, priority=1, weight=0.001)
        later = make_job(session, "later", now=0.5, priority=-1)
        for farm in (plain, urgent, later):
            issue(farm, 6)
        served = [next(iter(serve(session, DEVICE, 1, 3))) for _ in range(6)]
        assert served == ["urgent", "urgent", "plain", "plain", "later", "later"]

    def test_a_job_without_pending_trials_delays_no_other(self, session: Session) -> None:
        idle, busy = make_job(session, "idle", priority=5), make_job(session, "busy")
        issue(busy, 9)
        assert serve(session, DEVICE, 3, 3) == {"busy": 9}
        issue(busy, 3)
        issue(idle, 3)
        assert serve(session, DEVICE, 1, 3) == {"idle": 3}

    def test_a_returning_job_has_saved_no_share(self, session: Session) -> None:
        away, busy = make_job(session, "away"), make_job(session, "busy")
        issue(busy, 40)
        serve(session, DEVICE, 10, 2)
        issue(away, 40)
        got = serve(session, DEVICE, 8, 2)
        assert got.total() == 16
        assert abs(got["away"] - got["busy"]) <= 2 * 2, "a lease of each"

    def test_other_classes_and_finished_jobs_do_not_count(self, session: Session) -> None:
        theirs = make_job(session, "theirs", replace(DEVICE, cores=8), priority=9)
        mine = make_job(session, "mine")
        issue(theirs, 2)
        issue(mine, 2)
        assert serve(session, DEVICE, 1, 2) == {"mine": 2}
        assert take(session, DEVICE) is None
        assert fair_queue.waiting(session, 20.0).device_classes == {theirs.device.key}

    def test_a_module_run_waits_for_the_jobs_turn(self, session: Session) -> None:
        plain, urgent = make_job(session, "plain"), make_job(session, "urgent", priority=1)
        issue(urgent, 2)
        module_runs.add(session, plain.job_id, "untuned", blobs.put(session, b"artifact"), now=1.0)
        first, second = take(session, DEVICE), take(session, DEVICE)
        assert first is not None
        assert second is not None
        assert (first.job_id, second.job_id) == ("urgent", "plain")
        assert second.module_runs

    @pytest.mark.parametrize("servers", [2, 4, 16])
    def test_the_weights_hold_if_servers_choose_before_others_charge(
        self, session: Session, servers: int
    ) -> None:
        for name, weight in (("heavy", 3.0), ("light", 1.0)):
            issue(make_job(session, name, weight=weight), 1)
        got: Counter[str] = Counter()
        for _ in range(40):
            chosen = [fair_queue.entries(session, "worker", DEVICE.key, 20.0)[0] for _ in range(servers)]
            for entry in chosen:
                fair_queue.charge(session, entry, 3)
                got[entry.job_id] += 3
        assert abs(got["heavy"] / 3 - got["light"]) <= servers * 3 * (1 / 3 + 1)

    def test_many_servers_at_once_keep_to_the_weights(self, database: Database) -> None:
        with database.begin() as session:
            heavy, light = make_job(session, "heavy", weight=3.0), make_job(session, "light", weight=1.0)
            issue(heavy, 120)
            issue(light, 120)
        got: Counter[str] = Counter()

        def work(name: str) -> None:
            for _ in range(10):
                got.update(self._take_and_report(database, name))

        all_at_once([functools.partial(work, f"worker {number}") for number in range(4)])
        assert got.total() == 120
        # Each of four at once may see the shares as they were before the others took.
        assert abs(got["heavy"] - 90) <= 3 * 5
        with database.begin() as session:
            assert trials.counts(session, "heavy").done == got["heavy"]

    def _take_and_report(self, database: Database, name: str) -> dict[str, int]:
        with database.begin() as session:
            lease = take(session, DEVICE, 3, worker=name)
        assert lease is not None
        results = [LeaseResult(measured(1e-3), trial.id) for trial in lease.trials]
        with database.begin() as session:
            assert leases.report(session, lease.id, "session", results, now=30.0).closed
        return {lease.job_id: len(lease.trials)}


@dataclass(frozen=True)
class Board:
    """A worker of the class, with the seconds that its trials took."""

    name: str
    trial_s: float | None = None
    state: WorkerState = WorkerState.BUSY
    desired_state: DesiredState = DesiredState.WORK
    seen_at: float = 100.0


def plug_in(farm: Farm, boards: Sequence[Board]) -> None:
    for board in boards:
        workers.register(farm.session, WorkerSession(board.name, "session", board.state, farm.device), 1.0)
        if board.trial_s is not None:
            issue(farm, 1)
            lease = leases.acquire_lease(
                farm.session,
                f"of {board.name}",
                WorkerSession(board.name, "session", WorkerState.READY, farm.device),
                1,
                2.0,
                60,
            )
            assert lease is not None
            report = LeaseResult(measured(1e-3), lease.trials[0].id)
            leases.report(farm.session, lease.id, "session", [report], now=2.0 + board.trial_s)
        workers.heartbeat(farm.session, WorkerSession(board.name, "session", board.state), board.seen_at)
        workers.set_desired_state(farm.session, board.name, board.desired_state)


class TestQuota:
    @pytest.mark.parametrize(
        ("boards", "max_trials", "fraction"),
        [
            ([Board("me")], 8, 1.0),
            ([Board("me", 0.5)], 40, 1.0),
            ([Board("me", 30.0)], 1, 1.0),
            ([Board("me", 1.0), Board("other", 1.0)], 20, 0.5),
            ([Board("me", 4.0), Board("other", 1.0)], 5, 0.2),
            ([Board("me", 1.0), Board("other", 4.0)], 20, 0.8),
            # A worker of unknown speed counts as fast as the others are on average.
            ([Board("me"), Board("a", 1.0), Board("b", 1.0)], 8, 1 / 3),
            ([Board("me", 1.0), Board("other")], 20, 0.5),
            ([Board("me"), Board("other")], 8, 0.5),
            # Absent or paused workers don't count.
            ([Board("me", 1.0), Board("gone", 1.0, seen_at=10.0)], 20, 1.0),
            ([Board("me", 1.0), Board("leaving", 1.0, WorkerState.DRAINING)], 20, 1.0),
            ([Board("me", 1.0), Board("drained", 1.0, desired_state=DesiredState.DRAIN)], 20, 1.0),
        ],
    )
    def test_the_quota_lets_all_workers_of_a_class_finish_together(
        self, farm: Farm, boards: list[Board], max_trials: int, fraction: float
    ) -> None:
        plug_in(farm, boards)
        quota = fair_queue.quota(farm.session, "me", farm.device.key, now=101.0)
        assert quota.max_trials == max_trials
        assert quota.fraction == pytest.approx(fraction)

    @given(
        max_trials=st.integers(1, 300),
        fraction=st.floats(1e-6, 1.0),
        unfinished=st.integers(1, 10_000),
    )
    def test_the_quota_is_between_one_and_all_trials(
        self, max_trials: int, fraction: float, unfinished: int
    ) -> None:
        assert 1 <= Quota(max_trials, fraction).trials(unfinished) <= min(max_trials, unfinished)

    def test_equal_workers_halve_a_batch_in_any_order(self, farm: Farm) -> None:
        plug_in(farm, [Board("one", 0.5), Board("other", 0.5)])
        issue(farm, 21)
        held = [
            leases.acquire_lease(
                farm.session,
                name,
                WorkerSession(name, "session", WorkerState.READY, farm.device),
                16,
                now=101.0,
                ttl_s=60.0,
            )
            for name in ("one", "other", "one more")
        ]
        assert [len(lease.trials) if lease else 0 for lease in held] == [11, 10, 0]

    def test_a_slow_device_leaves_most_of_a_batch_to_a_fast_one(self, farm: Farm) -> None:
        plug_in(farm, [Board("slow", 9.0), Board("fast", 1.0)])
        issue(farm, 20)
        by_now = {"now": 101.0, "ttl_s": 60.0}
        slow = leases.acquire_lease(
            farm.session,
            "slow",
            WorkerSession("slow", "session", WorkerState.READY, farm.device),
            16,
            **by_now,
        )
        fast = leases.acquire_lease(
            farm.session,
            "fast",
            WorkerSession("fast", "session", WorkerState.READY, farm.device),
            32,
            **by_now,
        )
        assert slow is not None
        assert fast is not None
        assert (len(slow.trials), len(fast.trials)) == (2, 18)
