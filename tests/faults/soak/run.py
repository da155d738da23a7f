"""Run a soak: load, faults and sampling in parallel, then the checks."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass, field

import redis

from benchmarks.results.figures import Figure, at_most, figure
from core.exit_code import ExitCode
from core.worker import WorkerState
from records.fleet import workers
from records.storage.database import StorageError
from tests.faults.rig import ActiveTime
from tests.faults.soak import faults
from tests.faults.soak.accounts import Accounts
from tests.faults.soak.levels import Level, Watch
from tests.faults.soak.load import KEPT_HOURS, Load
from tests.faults.soak.rig import SoakRig, soak_rig

HOUR_S = 3600.0
TICK_S = 0.25
SAY_EVERY_S = 10.0
# Simulated hours between two samples, and on average between the end of a fault and the next one.
SAMPLE_HOURS = 0.05
QUIET_HOURS = 0.05
# How long the last jobs may take after the time is over.
LAST_JOBS_S = 180.0


@dataclass(frozen=True)
class Plan:
    """`hours` are simulated: `speed_up` of them pass in one."""

    hours: float = 12.0
    speed_up: float = 90.0
    seed: int = 0

    @property
    def hour_s(self) -> float:
        """Seconds that a simulated hour takes."""
        return HOUR_S / self.speed_up


@dataclass
class SoakResult:
    """The events of a soak, the `mistakes` found, and the samples."""

    plan: Plan
    accounts: Accounts
    jobs: int
    asks: int
    levels: list[Level]
    faults: Counter[str] = field(default_factory=Counter)
    left_out: list[str] = field(default_factory=list)

    @property
    def mistakes(self) -> list[str]:
        return self.accounts.mistakes

    def figures(self) -> list[Figure]:
        accounts = self.accounts
        kinds = ", ".join(f"{times} {name}" for name, times in sorted(self.faults.items()))
        return [
            figure("simulated hours", self.plan.hours, "h", note=f"{self.plan.speed_up:g} times as fast"),
            figure("mistakes (lost, doubled or wrong)", len(self.mistakes), "", aim=at_most(0)),
            figure("jobs that ended well", self.jobs, ""),
            figure("trials with a result", accounts.reported, ""),
            figure("trials given up because two devices died of them", accounts.given_up, ""),
            figure("trials that failed", accounts.failed.total(), ""),
            figure("look-ups of best schedules, all right", self.asks, ""),
            figure("faults", self.faults.total(), "", note=kinds),
            *(each for level in self.levels for each in level.figures()),
        ]


def run(plan: Plan, say: Callable[[str], None]) -> SoakResult:
    """Run the soak. Raises Missing, TimedOut."""
    accounts, draw = Accounts(), random.Random(plan.seed)
    with soak_rig(plan.speed_up) as rig:
        rig.start_workers()
        rig.wait_until(lambda: _ready(rig), lambda: _worker_logs(rig))
        watch, struck = Watch(rig), Faulter(rig, plan, random.Random(draw.random()), accounts)
        load = Load(rig, random.Random(draw.random()), KEPT_HOURS * plan.hour_s, accounts)
        with closing(load), closing(struck):
            _drive(rig, plan, load, watch, struck, accounts, say)
            load_ended = _finish_jobs(load, accounts, say)
            if load_ended:
                acknowledged = {one.id for one in load.submitted}
                deleted = {one.id for one in load.submitted if one.deleted}
                accounts.settle(rig.database, acknowledged, deleted, rig.redis.url)
        left_out = sorted(faults.FAULTS.keys() - set(faults.possible(rig)))
        if accounts.mistakes:
            say(_logs(rig))
        return SoakResult(plan, accounts, load.ended, load.asks, watch.levels(), struck.counts, left_out)


class Faulter:
    """Injects faults in a separate thread. Processes end with the thread that started them, so the thread
    lives until `close`.
    """

    def __init__(self, rig: SoakRig, plan: Plan, draw: random.Random, accounts: Accounts) -> None:
        self.counts: Counter[str] = Counter()
        self.last = ""
        self._rig, self._draw, self._accounts = rig, draw, accounts
        self._quiet_s = QUIET_HOURS * plan.hour_s
        self._is_over, self._at_rest, self._closed = (threading.Event() for _ in range(3))
        self._thread = threading.Thread(target=self._stay, name="faults", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop after the last fault is repaired."""
        self._is_over.set()
        self._at_rest.wait()

    def close(self) -> None:
        self._is_over.set()
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join()

    def _stay(self) -> None:
        try:
            self._strike_on()
        finally:
            self._at_rest.set()
        self._closed.wait()

    def _strike_on(self) -> None:
        following = faults.order(faults.possible(self._rig), self._draw)
        while not self._is_over.wait(self._draw.expovariate(1 / self._quiet_s)):
            name = following()
            try:
                self.last = f"{name} ({faults.inject(self._rig, name, self._draw)})"
            except Exception as error:
                self._accounts.wrong(f"after {name!r} the service did not come back: {error}")
                return
            self.counts[name] += 1


def _drive(
    rig: SoakRig,
    plan: Plan,
    load: Load,
    watch: Watch,
    struck: Faulter,
    accounts: Accounts,
    say: Callable[[str], None],
) -> None:
    passed = ActiveTime()
    sampled = said = float("-inf")
    told = 0
    struck.start()
    while (hour := passed() / plan.hour_s) < plan.hours:
        load.tick()
        if hour >= sampled + SAMPLE_HOURS:
            with suppress(StorageError, redis.RedisError):
                watch.sample(hour)
                sampled = hour
        for name, program in rig.programs.items():
            code = program.exit_code()
            if code is not None and name not in rig.down:
                # A process that starts without its database ends, and its supervisor restarts it.
                if code != ExitCode.LOCAL:
                    accounts.wrong(f"{name} ended by itself with {code}:\n{program.output()[-2000:]}")
                program.start()
        for mistake in accounts.mistakes[told:]:
            say(f"wrong: {mistake}")
        told = len(accounts.mistakes)
        if hour * plan.hour_s >= said + SAY_EVERY_S:
            said, left_s = hour * plan.hour_s, (plan.hours - hour) * plan.hour_s
            counted = f"{load.ended} jobs, {accounts.reported} trials, {struck.counts.total()} faults"
            wrong = f"{len(accounts.mistakes)} mistakes"
            say(f"hour {hour:.1f} of {plan.hours:g}: {counted}, {wrong}; {struck.last}; {left_s:.0f} s left")
        time.sleep(TICK_S)
    struck.stop()


def _finish_jobs(load: Load, accounts: Accounts, say: Callable[[str], None]) -> bool:
    """Wait for the last jobs; return whether all have ended."""
    say(f"the time is up: {len(load.unfinished)} jobs are left to end")
    waited = ActiveTime()
    while load.unfinished and waited() < LAST_JOBS_S:
        load.tick(submits=False)
        time.sleep(TICK_S)
    for one in load.unfinished:
        accounts.wrong(f"job {one.id or one.key} did not end within {LAST_JOBS_S:.0f} s after the last fault")
    return not load.unfinished


def _ready(rig: SoakRig) -> bool:
    with rig.database.begin() as session:
        states = [worker.state for worker in workers.list_workers(session)]
    return sum(state is WorkerState.READY for state in states) == len(rig.workers)


def _worker_logs(rig: SoakRig) -> str:
    logs = [f"{name}:\n{worker.output()[-2000:]}" for name, worker in rig.workers.items()]
    return "\n".join(["no four workers got ready", *logs])


def _logs(rig: SoakRig) -> str:
    return "\n".join(f"{name}:\n{program.output()[-4000:]}" for name, program in rig.programs.items())
