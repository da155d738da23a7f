"""Every fault as a play: what is done to a running job, and where the failure has to be named."""

from __future__ import annotations

import contextlib
import functools
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.faults import places
from benchmarks.faults.hand import Hand, connected
from benchmarks.faults.stage import Ledger, Stage, left_behind
from core.measurement import Outcome
from core.worker import WorkerState

# Long enough for the job to be in the middle of it.
NAP_S = 0.1
BUILD_NAP_S = 0.3
LONG = 40
HOUR_S = 3600.0


class NotNamed(AssertionError):
    """A failure that nobody is told of."""


@dataclass(frozen=True)
class Scenario:
    """`play` returns the seconds until the job went on. `given_up` trials took devices down in it."""

    name: str
    play: Callable[[Stage], float]
    place: str = "usual"
    given_up: int = 0


@dataclass(frozen=True)
class Seen:
    """What one play came to."""

    ledger: Ledger
    recovery_s: float


def run(scenario: Scenario, stage: Stage) -> Seen:
    """Plays it until the job has finished. Raises GaveUp, NotNamed."""
    try:
        recovery_s = scenario.play(stage)
        stage.until_finished()
        return Seen(stage.ledger(scenario.given_up), recovery_s)
    finally:
        stage.close()


# Workers that die


def _killed(stage: Stage, phase: str) -> float:
    worker = stage.begin(does="hang", phase=phase)
    stage.until_noted()
    worker.kill()
    since = time.monotonic()
    stage.worker()
    recovery_s = stage.recovered(since)
    # Another batch may have been there to go on with.
    stage.until(lambda: "was lost" in stage.told(), "nobody is told that the worker was lost")
    return recovery_s


def _killed_while_reporting(stage: Stage) -> float:
    """The report is with the server, which hasn't looked at it yet."""
    worker = stage.begin()
    stage.until_noted()
    stage.rig.server.send(signal.SIGSTOP)
    time.sleep(1.5)  # a worker reports every second
    worker.kill()
    stage.rig.server.send(signal.SIGCONT)
    since = time.monotonic()
    stage.worker()
    return stage.recovered(since)


def _takes_devices_down(stage: Stage) -> float:
    worker = stage.begin(does="hang", always=True)
    for times in (1, 2):
        stage.until_noted(times)
        worker.kill()
        since = time.monotonic()
        worker = stage.worker()
    recovery_s = stage.recovered(since)
    stage.until_finished()
    _expect("every device that held it was lost", stage.chosen().error)
    return recovery_s


def _builder_killed(stage: Stage) -> float:
    """Something of its lease is stored, something is not built yet."""
    builder = stage.begin_with_builder(BUILD_NAP_S)
    stage.until(lambda: stage.libraries() > 0, "nothing was built")
    builder.kill()
    left = stage.libraries()
    since = time.monotonic()
    stage.builder()
    recovery_s = stage.recovered(since)
    stage.until(lambda: "was lost" in stage.told(), "nobody is told that the builder was lost")
    stage.until_finished()
    if not left < stage.libraries() == len(stage.trials()):
        raise NotNamed(f"{left} trials, then {stage.libraries()} came built, of {len(stage.trials())}")
    return recovery_s


def _one_identity(stage: Stage) -> float:
    first = stage.begin(LONG, nap_s=NAP_S)
    stage.until_done(4)
    since = time.monotonic()
    stage.worker()
    stage.until(lambda: first.ended() is not None, "the first worker goes on")
    _expect("another worker took over the name", first.words())
    return stage.recovered(since)


# Children that misbehave


def _misbehaves(stage: Stage, does: str, outcome: Outcome, says: str) -> float:
    stage.begin(does=does)
    stage.until_noted()
    since = time.monotonic()
    recovery_s = stage.recovered(since)
    stage.until(lambda: stage.chosen().outcome is not None, "the chosen candidate has no result")
    if stage.chosen().outcome is not outcome:
        raise NotNamed(f"{does} ended as {stage.chosen().outcome}: {stage.chosen().error}")
    _expect(says, stage.chosen().error)
    return recovery_s


def _forks(stage: Stage) -> float:
    recovery_s = _misbehaves(stage, "fork", Outcome.RUN_ERROR, "exited with code 3")
    alive = [pid for pid in left_behind(stage.notes) if psutil.pid_exists(pid)]
    if alive or not left_behind(stage.notes):
        raise NotNamed(f"{len(alive)} processes of a candidate outlived it")
    return recovery_s


# A service that is away


def _server_killed(stage: Stage) -> float:
    worker = stage.begin(LONG, nap_s=NAP_S)
    stage.until_done(4)
    since = time.monotonic()
    stage.rig.server.kill()
    stage.rig.server.start()
    stage.rig.wait_ready()
    recovery_s = stage.recovered(since)
    _expect("doesn't answer", worker.words())
    return recovery_s


def _scheduler_killed(stage: Stage) -> float:
    stage.begin(LONG, nap_s=NAP_S)
    stage.until_done(4)
    since = time.monotonic()
    stage.rig.scheduler.kill()
    stage.rig.scheduler.start()
    before = stage.job().trials_issued
    stage.until(lambda: stage.job().trials_issued > before, "nothing was planned any more")
    return time.monotonic() - since


def _locked(stage: Stage) -> float:
    worker = stage.begin(LONG, nap_s=NAP_S)
    stage.until_done(4)
    with _lock(stage.rig.database_file):
        time.sleep(5.0)
    recovery_s = stage.recovered(time.monotonic())
    _expect("keeps it locked", stage.rig.server.words() + worker.words())
    return recovery_s


def _disk_full(stage: Stage) -> float:
    worker = stage.begin(LONG, nap_s=NAP_S)
    stage.until_done(4)
    with places.full(stage.rig.data):
        time.sleep(3.0)
    recovery_s = stage.recovered(time.monotonic())
    _expect("the disk is full", stage.rig.server.words() + worker.words())
    return recovery_s


def _clock_stepped(stage: Stage, seconds: float) -> float:
    stage.begin(LONG, nap_s=NAP_S)
    stage.until_done(4)
    since = time.monotonic()
    stage.rig.step_clock(seconds)
    recovery_s = stage.recovered(since)
    stage.until_finished()
    return recovery_s


# A network that is away


def _unplugged(stage: Stage) -> float:
    """For longer than a worker waits for an answer."""
    worker = stage.begin(LONG, nap_s=NAP_S)
    stage.until_done(4)
    with places.unplugged():
        stage.until(lambda: "doesn't answer" in worker.words(), "the worker noticed nothing")
    return stage.recovered(time.monotonic())


def _half_open(stage: Stage) -> float:
    stage.begin(LONG, nap_s=NAP_S)
    stage.until_done(4)
    with places.deaf():
        time.sleep(6.0)
    return stage.recovered(time.monotonic())


# Workers that can't be trusted


@contextlib.contextmanager
def _hand(stage: Stage) -> Iterator[Hand]:
    """It is ready, and there is a job."""
    channel, stub = connected(stage)
    with channel:
        hand = Hand(stage, stub)
        hand.call(WorkerState.READY)
        stage.submit()
        yield hand


def _repeats_itself(stage: Stage) -> float:
    """Every result is sent twice at once, and again when its lease has been closed long ago."""
    with _hand(stage) as hand:
        first = hand.lease_of_trials()
        results = hand.measure(first)
        for _ in range(2):
            hand.call(WorkerState.BUSY, first.id, results)
        since = time.monotonic()
        second = hand.lease()
        recovery_s = time.monotonic() - since
        late = [*results, *hand.measure(second)]
        hand.call(WorkerState.BUSY, second.id, late)
        hand.call(WorkerState.READY, None, late)
        hand.work_on()
    return recovery_s


def _reports_late(stage: Stage) -> float:
    """A session that has been fenced off reports what another one measures again meanwhile."""
    with _hand(stage) as old:
        lease = old.lease_of_trials()
        new = Hand(stage, old.stub)
        new.call(WorkerState.READY)
        since = time.monotonic()
        if not old.report(lease).fenced:
            raise NotNamed("a session that has been replaced is not told so")
        again = new.lease()
        recovery_s = time.monotonic() - since
        new.report(again)
        old.report(lease)
        new.work_on()
    return recovery_s


def _reports_nonsense(stage: Stage, run_secs: tuple[float, ...]) -> float:
    """Once, of a whole lease."""
    with _hand(stage) as hand:
        lease = hand.lease_of_trials()
        honest, hand.run_secs = hand.run_secs, run_secs
        hand.report(lease)
        hand.run_secs = honest
        since = time.monotonic()
        hand.report(hand.lease())
        recovery_s = time.monotonic() - since
        hand.work_on()
    refused = [trial for trial in stage.trials() if trial.outcome is Outcome.UNKNOWN]
    if len(refused) != len(lease.candidates):
        raise NotNamed(f"{len(refused)} of {len(lease.candidates)} impossible results were refused")
    _expect("made no sense", refused[0].error)
    return recovery_s


@contextlib.contextmanager
def _lock(file: Path) -> Iterator[None]:
    connection = sqlite3.connect(file, timeout=30.0, isolation_level=None)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        yield
    finally:
        connection.rollback()
        connection.close()


def _expect(said: str, text: str) -> None:
    if said not in text:
        raise NotNamed(f"{said!r} is not said where it should be:\n{text[-3000:]}")


def _bad(does: str, outcome: Outcome, says: str) -> Callable[[Stage], float]:
    return functools.partial(_misbehaves, does=does, outcome=outcome, says=says)


def _nonsense(*run_secs: float) -> Callable[[Stage], float]:
    return functools.partial(_reports_nonsense, run_secs=run_secs)


SCENARIOS = (
    Scenario("worker killed while compiling", functools.partial(_killed, phase="build")),
    Scenario("worker killed while timing", functools.partial(_killed, phase="run")),
    Scenario("worker killed while reporting", _killed_while_reporting),
    Scenario("builder killed while building", _builder_killed),
    Scenario("candidate takes down every device", _takes_devices_down, given_up=1),
    Scenario("two workers of one name", _one_identity),
    Scenario("child hangs", _bad("hang", Outcome.RUN_TIMEOUT, "took longer than")),
    Scenario("child spins", _bad("spin", Outcome.RUN_TIMEOUT, "took longer than")),
    Scenario("child out of memory", _bad("fill memory", Outcome.RUN_ERROR, "MemoryError")),
    Scenario("child follows a bad pointer", _bad("segfault", Outcome.RUN_ERROR, "SIGSEGV")),
    Scenario("child writes to standard output", _bad("print", Outcome.OK, "")),
    Scenario("child forks", _forks),
    Scenario("child computes wrong outputs", _bad("wrong", Outcome.WRONG_RESULT, "differs")),
    Scenario("server killed", _server_killed),
    Scenario("scheduler killed", _scheduler_killed),
    Scenario("database locked", _locked),
    Scenario("disk full", _disk_full, place="small disk"),
    Scenario("clock an hour ahead", functools.partial(_clock_stepped, seconds=HOUR_S)),
    Scenario("clock an hour back", functools.partial(_clock_stepped, seconds=-HOUR_S)),
    Scenario("network cut", _unplugged, place="cable"),
    Scenario("network half-open", _half_open, place="cable"),
    Scenario("results sent again and again", _repeats_itself),
    Scenario("results of a session that was replaced", _reports_late),
    Scenario("impossible times", _bad("lie", Outcome.UNKNOWN, "made no sense")),
    Scenario("times that are no number", _nonsense(float("nan"), 0.001)),
    Scenario("times of nothing", _nonsense(0.0)),
    Scenario("times before they began", _nonsense(-0.001)),
)
