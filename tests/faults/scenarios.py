"""Fault scenarios: each injects a fault into a running job and requires that its cause is reported."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from core.job import JobState
from core.measurement import Outcome
from core.tokens import DEFAULT_LIFETIME_S
from core.worker import WorkerState
from records.storage import backup
from tests.faults import environments
from tests.faults.hostile_models import CODE_RAN, hostile
from tests.faults.job_run import JobRun, Ledger, processes_left_behind, product
from tests.faults.replicas import ReplicatedRig
from tests.faults.scripted_worker import ScriptedWorker, connected
from tests.unit.tunefarm.answering import Reply, Request, answering

# Slow candidates and many trials: the fault comes in the middle of the job.
NAP_S = 0.1
BUILD_NAP_S = 0.3
LONG = 40
REPLICATED = 120
HOUR_S = 3600.0
MANY, MANY_S = int(os.environ.get("TUNEFARM_JOBS", "50")), 1500.0
# The service's answer while its database is locked. Clients retry.
BUSY = 503


class NotReported(AssertionError):
    """A failure was not reported where users look for it; the message says what is missing."""


@dataclass(frozen=True)
class Scenario:
    """`inject` returns the seconds until the job went on; it raises NotReported, TimedOut.

    `environment` is a key of ENVIRONMENTS. `given_up` trials take devices down and get no result.
    """

    name: str
    inject: Callable[[JobRun], float]
    environment: str = "local"
    given_up: int = 0


@dataclass(frozen=True)
class RunResult:
    """The errors of one run, from the database, and the seconds until the job went on."""

    ledger: Ledger
    recovery_s: float


# Workers that are killed


def _kill_worker(run: JobRun, phase: str) -> float:
    worker = run.begin(does="hang", phase=phase)
    run.until_misbehaved()
    worker.kill()
    since = time.monotonic()
    run.worker()
    recovery_s = run.seconds_to_recovery(since)
    # The next batch may have been ready, so the loss may be noticed later than the recovery.
    run.until(lambda: "was lost" in run.event_text(), "no event says that the worker was lost")
    return recovery_s


def _kill_worker_while_reporting(run: JobRun) -> float:
    """Kill the worker after its report reached the server's socket, before the server reads it."""
    worker = run.begin()
    run.until_misbehaved()
    run.rig.servers[0].send(signal.SIGSTOP)
    time.sleep(1.5)  # a worker reports every second
    worker.kill()
    run.rig.servers[0].send(signal.SIGCONT)
    since = time.monotonic()
    run.worker()
    return run.seconds_to_recovery(since)


def _kill_every_worker_of_a_candidate(run: JobRun) -> float:
    worker = run.begin(does="hang", always=True)
    for times in (1, 2):
        run.until_misbehaved(times)
        worker.kill()
        since = time.monotonic()
        worker = run.worker()
    recovery_s = run.seconds_to_recovery(since)
    run.until_finished()
    _require("every device that held it was lost", run.chosen().error)
    return recovery_s


def _kill_builder(run: JobRun) -> float:
    """Kill the builder when only a part of its lease is built and stored."""
    builder = run.begin_with_builder(BUILD_NAP_S)
    run.until(lambda: run.trials_built() > 0, "nothing was built")
    builder.kill()
    left = run.trials_built()
    since = time.monotonic()
    run.builder()
    recovery_s = run.seconds_to_recovery(since)
    run.until(lambda: "was lost" in run.event_text(), "no event says that the builder was lost")
    run.until_finished()
    if not left < run.trials_built() == len(run.trials()):
        raise NotReported(f"{left}, then {run.trials_built()} of {len(run.trials())} trials came built")
    return recovery_s


def _start_second_worker_of_the_name(run: JobRun) -> float:
    first = run.begin(LONG, nap_s=NAP_S)
    run.until_done(4)
    since = time.monotonic()
    run.worker()
    run.until(lambda: first.exit_code() is not None, "the first worker did not end")
    _require("another worker took over the name", first.output())
    return run.seconds_to_recovery(since)


# Candidates that misbehave


def _misbehave(run: JobRun, does: str, outcome: Outcome, says: str) -> float:
    run.begin(does=does)
    run.until_misbehaved()
    since = time.monotonic()
    recovery_s = run.seconds_to_recovery(since)
    run.until(lambda: run.chosen().outcome is not None, "the chosen candidate has no result")
    if run.chosen().outcome is not outcome:
        raise NotReported(f"{does} ended as {run.chosen().outcome}: {run.chosen().error}")
    _require(says, run.chosen().error)
    return recovery_s


def _fork(run: JobRun) -> float:
    recovery_s = _misbehave(run, "fork", Outcome.RUN_ERROR, "exited with code 3")
    alive = processes_left_behind(run.notes)
    if any(alive) or not alive:
        raise NotReported(f"{sum(alive)} processes of a candidate outlived it")
    return recovery_s


# A service that does not answer


def _kill_server(run: JobRun) -> float:
    worker = run.begin(LONG, nap_s=NAP_S)
    run.until_done(4)
    since = time.monotonic()
    run.rig.servers[0].kill()
    run.rig.servers[0].start()
    run.rig.wait_ready()
    recovery_s = run.seconds_to_recovery(since)
    _require("doesn't answer", worker.output())
    return recovery_s


def _kill_scheduler(run: JobRun) -> float:
    run.begin(LONG, nap_s=NAP_S)
    run.until_done(4)
    since = time.monotonic()
    run.rig.schedulers[0].kill()
    run.rig.schedulers[0].start()
    before = run.job().trials_issued
    run.until(lambda: run.job().trials_issued > before, "nothing was planned any more")
    return time.monotonic() - since


def _lock_database(run: JobRun) -> float:
    worker = run.begin(LONG, nap_s=NAP_S)
    run.until_done(4)
    with _exclusive_lock(run.rig.database_file):
        time.sleep(5.0)
    recovery_s = run.seconds_to_recovery(time.monotonic())
    _require("keeps it locked", run.rig.servers[0].output() + worker.output())
    return recovery_s


def _fill_disk(run: JobRun) -> float:
    worker = run.begin(LONG, nap_s=NAP_S)
    run.until_done(4)
    with environments.full(run.rig.data):
        time.sleep(3.0)
    recovery_s = run.seconds_to_recovery(time.monotonic())
    _require("the disk is full", run.rig.servers[0].output() + worker.output())
    return recovery_s


def _step_clock(run: JobRun, seconds: float) -> float:
    run.begin(LONG, nap_s=NAP_S)
    run.until_done(4)
    since = time.monotonic()
    run.rig.step_clock(seconds)
    recovery_s = run.seconds_to_recovery(since)
    run.until_finished()
    return recovery_s


def _let_clock_jump(run: JobRun, is_watched: bool) -> float:
    """Set the clock a day ahead, two back and one ahead; unless it `is_watched`, while no scheduler runs.

    Leases lapse each time it is set ahead, so what was leased the first time is measured before the second.
    """
    run.begin(LONG, nap_s=NAP_S)
    recovery_s = 0.0
    stopped = () if is_watched else run.rig.schedulers
    for done, days in ((4, 1.0), (20, -2.0), (28, 1.0)):
        run.until_done(done)
        for scheduler in stopped:
            scheduler.kill()
        run.rig.step_clock(days * 24 * HOUR_S)
        for scheduler in stopped:
            scheduler.start()
        recovery_s = max(recovery_s, run.seconds_to_recovery(time.monotonic()))
    run.until_finished()
    return recovery_s


def _correct_clock(run: JobRun) -> float:
    """Correct the clock of a machine that has booted with a clock ten years ahead."""
    sent: list[int] = []

    def receive(_: Request) -> Reply:
        sent.append(500 if not sent else 200)
        return Reply(sent[-1])

    with answering(receive) as url, run.rig.http() as http:
        http.post("/v1/webhooks", json={"url": url, "events": ["job.finished"]}).raise_for_status()
        run.begin(nap_s=NAP_S)
        run.until_finished()
        first = run.job_id
        run.until(lambda: bool(sent), "no message was sent")
        http.post("/v1/tokens", json={"name": "ci", "scopes": ["read"]}).raise_for_status()
        run.submit(LONG)
        run.until_done(4)
        run.rig.step_clock(-environments.TEN_YEARS_S)
        recovery_s = run.seconds_to_recovery(time.monotonic())
        run.until(lambda: 200 in sent, "the message was not sent again")
        [token] = http.get("/v1/tokens").raise_for_status().json()["items"]
        if not token["expires_at"] < time.time() + 2 * DEFAULT_LIFETIME_S:
            raise NotReported(f"the token is valid for years: {token}")
        listed = [job["id"] for job in http.get("/v1/jobs").raise_for_status().json()["items"]]
        if listed != [run.job_id, first]:
            raise NotReported(f"the jobs are listed in the order {listed}")
        run.until_finished()
    return recovery_s


def _correct_devices_clock(run: JobRun) -> float:
    """Correct the clock of a device that has booted before the server's certificate was made."""
    worker = run.worker()
    run.until(lambda: "certificate" in worker.output(), "the worker doesn't mention the certificate")
    since = time.monotonic()
    run.rig.step_clock(environments.TEN_YEARS_S)
    run.until(lambda: run.are_ready(1), "the worker did not get ready")
    recovery_s = time.monotonic() - since
    run.submit()
    run.until_finished()
    return recovery_s


def _damage_database(run: JobRun) -> float:
    """Overwrite the database while it is used, restore a backup, and go on from there."""
    rig, copy = run.rig, run.rig.folder / f"{run.name}.backup"
    worker = run.begin(LONG, nap_s=NAP_S)
    run.until_done(4)
    url = rig.backends("rig").database_url
    backup.backup(url, copy)
    for file in (rig.database_file, Path(f"{rig.database_file}-wal")):
        with file.open("r+b") as opened:
            opened.seek(4096)
            opened.write(b"\xa5" * max(file.stat().st_size - 4096, 0))
    says = "restore it from a backup"
    run.rig.wait_until(
        lambda: says in rig.servers[0].output() + worker.output(), lambda: "nobody says that it is damaged"
    )
    for program in (*rig.servers, *rig.schedulers):
        program.kill()
    rig.database.close()
    backup.restore(url, copy)
    since = time.monotonic()
    for program in (*rig.servers, *rig.schedulers):
        program.start()
    rig.wait_ready()
    return run.seconds_to_recovery(since)


def _send_hostile_models(run: JobRun) -> float:
    """Upload files that attack the service, and start a job of each that it accepts."""
    run.begin(LONG, nap_s=NAP_S)
    run.until(lambda: run.done() >= 4, "there were no results", MANY_S)
    started: dict[str, str] = {}
    target = run.faults.device.key
    with run.rig.http() as http:
        for name, data in hostile().items():
            answer = http.post("/v1/models", params={"name": name}, content=data)
            if answer.status_code == 422:
                _require(".", answer.json()["detail"])
                continue
            sha = answer.raise_for_status().json()["sha256"]
            body = {"model": sha, "trials": 1, "target": target}
            started[http.post("/v1/jobs", json=body).raise_for_status().json()["id"]] = name
        since = time.monotonic()
        run.until(lambda: not run.unfinished_others(), "jobs of hostile models did not end", MANY_S)
        recovery_s = time.monotonic() - since
        http.get("/readyz").raise_for_status()
    for job in run.others():
        if job.state is not JobState.FAILED or not job.error or CODE_RAN in job.error:
            raise NotReported(f"{started[job.id]} ended as {job.state}: {job.error}")
    if len(run.others()) != len(started):
        raise NotReported(f"{len(run.others())} of {len(started)} jobs of hostile models are known")
    return recovery_s


def _submit_many(run: JobRun) -> float:
    """Submit MANY jobs at once, each twice with one Idempotency-Key, as clients do whose answers get lost."""
    run.begin()
    with run.rig.http() as http:
        sha = http.post("/v1/models", content=product(64)).raise_for_status().json()["sha256"]
        body = {"model": sha, "trials": 1, "target": run.faults.device.key}

        def submit(number: int) -> str:
            headers = {"Idempotency-Key": f"{run.name}-{number % MANY}"}
            while (answer := http.post("/v1/jobs", json=body, headers=headers)).status_code == BUSY:
                time.sleep(0.1)
            return str(answer.raise_for_status().json()["id"])

        with ThreadPoolExecutor(32) as pool:
            ids = list(pool.map(submit, range(2 * MANY)))
    if ids[:MANY] != ids[MANY:] or len(set(ids)) != MANY:
        raise NotReported(f"{MANY} keys made {len(set(ids))} jobs")
    # The other jobs take turns with this one.
    recovery_s = run.seconds_to_recovery(time.monotonic(), MANY_S)
    run.until(lambda: not run.unfinished_others(), "not all jobs ended", MANY_S)
    for job in run.others():
        if (job.state, job.trials_done, job.artifact_sha is None) != (JobState.DONE, 1, False):
            raise NotReported(f"job {job.id} ended as {job.state} with {job.trials_done} trials: {job.error}")
    return recovery_s


# A service of several processes


def _stop_postgresql(run: JobRun) -> float:
    """Crash PostgreSQL in the middle of the job, and restart it later."""
    rig = run.rig
    assert isinstance(rig, ReplicatedRig), "the environment is replicated"
    worker = run.begin(REPLICATED, nap_s=NAP_S)
    run.until_done(4)
    rig.postgresql.stop()
    time.sleep(4.0)
    rig.postgresql.start()
    recovery_s = run.seconds_to_recovery(time.monotonic())
    said = worker.output() + "".join(program.output() for program in rig.servers)
    _require("that its server runs", said)
    return recovery_s


def _restart_all(run: JobRun) -> float:
    """Restart both servers and both schedulers in turn, as an upgrade does. Flush Redis, and crash
    PostgreSQL.
    """
    rig = run.rig
    assert isinstance(rig, ReplicatedRig), "the environment is replicated"
    run.begin(REPLICATED, nap_s=NAP_S)
    run.until_done(4)
    for program in (*rig.servers, *rig.schedulers):
        program.stop()
        if program.exit_code() != 0:
            raise NotReported(f"SIGTERM ended it with {program.exit_code()}:\n{program.output()[-3000:]}")
        program.start()
        rig.wait_ready()
        run.seconds_to_recovery(time.monotonic())
    rig.redis.flush()
    run.seconds_to_recovery(time.monotonic())
    since = time.monotonic()
    rig.postgresql.stop()
    rig.postgresql.start()
    return run.seconds_to_recovery(since)


# A network that fails


def _unplug(run: JobRun) -> float:
    """Take the link down for longer than a worker waits for an answer."""
    worker = run.begin(LONG, nap_s=NAP_S)
    run.until_done(4)
    with environments.unplugged():
        run.until(lambda: "doesn't answer" in worker.output(), "the worker noticed nothing")
    return run.seconds_to_recovery(time.monotonic())


def _open_half(run: JobRun) -> float:
    run.begin(LONG, nap_s=NAP_S)
    run.until_done(4)
    with environments.half_open():
        time.sleep(6.0)
    return run.seconds_to_recovery(time.monotonic())


# Workers that report what is wrong


@contextlib.contextmanager
def _scripted_worker(run: JobRun) -> Iterator[ScriptedWorker]:
    """Yield a worker that is ready, after submitting a job for it."""
    channel, stub = connected(run)
    with channel:
        worker = ScriptedWorker(run, stub)
        worker.call(WorkerState.READY)
        run.submit()
        yield worker


def _report_repeatedly(run: JobRun) -> float:
    """Report every result twice at once, and again long after its lease was closed."""
    with _scripted_worker(run) as worker:
        first = worker.lease_of_trials()
        results = worker.measure(first)
        for _ in range(2):
            worker.call(WorkerState.BUSY, first.id, results)
        since = time.monotonic()
        second = worker.lease()
        recovery_s = time.monotonic() - since
        late = [*results, *worker.measure(second)]
        worker.call(WorkerState.BUSY, second.id, late)
        worker.call(WorkerState.READY, None, late)
        worker.work_on()
    return recovery_s


def _report_from_fenced_session(run: JobRun) -> float:
    """Report from a session that was fenced off, while its successor measures the same trials again."""
    with _scripted_worker(run) as old:
        lease = old.lease_of_trials()
        new = ScriptedWorker(run, old.stub)
        new.call(WorkerState.READY)
        since = time.monotonic()
        if not old.report(lease).fenced:
            raise NotReported("a session that was replaced is not told so")
        again = new.lease()
        recovery_s = time.monotonic() - since
        new.report(again)
        old.report(lease)
        new.work_on()
    return recovery_s


def _report_impossible_times(run: JobRun, run_s: tuple[float, ...]) -> float:
    """Report `run_s` for one whole lease, then honest times."""
    with _scripted_worker(run) as worker:
        lease = worker.lease_of_trials()
        honest, worker.run_s = worker.run_s, run_s
        worker.report(lease)
        worker.run_s = honest
        since = time.monotonic()
        worker.report(worker.lease())
        recovery_s = time.monotonic() - since
        worker.work_on()
    refused = [trial for trial in run.trials() if trial.outcome is Outcome.UNKNOWN]
    if len(refused) != len(lease.candidates):
        raise NotReported(f"{len(refused)} of {len(lease.candidates)} impossible results were refused")
    _require("measurement is impossible", refused[0].error)
    return recovery_s


@contextlib.contextmanager
def _exclusive_lock(file: Path) -> Iterator[None]:
    connection = sqlite3.connect(file, timeout=30.0, isolation_level=None)
    try:
        connection.execute("BEGIN EXCLUSIVE")
        yield
    finally:
        connection.rollback()
        connection.close()


def _require(part: str, text: str) -> None:
    if part not in text:
        raise NotReported(f"{part!r} is missing in:\n{text[-3000:]}")


def _candidate(does: str, outcome: Outcome, says: str) -> Callable[[JobRun], float]:
    return functools.partial(_misbehave, does=does, outcome=outcome, says=says)


def _times(*run_s: float) -> Callable[[JobRun], float]:
    return functools.partial(_report_impossible_times, run_s=run_s)


SCENARIOS = (
    Scenario("worker killed while compiling", functools.partial(_kill_worker, phase="build")),
    Scenario("worker killed while timing", functools.partial(_kill_worker, phase="run")),
    Scenario("worker killed while reporting", _kill_worker_while_reporting),
    Scenario("builder killed while building", _kill_builder),
    Scenario("candidate takes down every device", _kill_every_worker_of_a_candidate, given_up=1),
    Scenario("two workers of one name", _start_second_worker_of_the_name),
    Scenario("child hangs", _candidate("hang", Outcome.RUN_TIMEOUT, "took longer than")),
    Scenario("child spins", _candidate("spin", Outcome.RUN_TIMEOUT, "took longer than")),
    Scenario("child out of memory", _candidate("fill_memory", Outcome.RUN_ERROR, "MemoryError")),
    Scenario("child follows a bad pointer", _candidate("segfault", Outcome.RUN_ERROR, "SIGSEGV")),
    Scenario("child writes to standard output", _candidate("print", Outcome.OK, "")),
    Scenario("child forks", _fork),
    Scenario("child computes wrong outputs", _candidate("wrong", Outcome.WRONG_RESULT, "differs")),
    Scenario("server killed", _kill_server),
    Scenario("scheduler killed", _kill_scheduler),
    Scenario("database locked", _lock_database),
    Scenario("disk full", _fill_disk, environment="small disk"),
    Scenario("clock an hour ahead", functools.partial(_step_clock, seconds=HOUR_S)),
    Scenario("clock an hour back", functools.partial(_step_clock, seconds=-HOUR_S)),
    Scenario("clock jumps by days", functools.partial(_let_clock_jump, is_watched=True)),
    Scenario("clock jumps while no scheduler runs", functools.partial(_let_clock_jump, is_watched=False)),
    Scenario("clock ten years ahead after a boot", _correct_clock, environment="wrong clock"),
    Scenario("device ten years behind", _correct_devices_clock, environment="encrypted, devices behind"),
    Scenario("database damaged and restored", _damage_database),
    Scenario("hostile models", _send_hostile_models, environment="contained"),
    Scenario("many jobs at once", _submit_many),
    Scenario("server killed behind TLS", _kill_server, environment="encrypted"),
    Scenario("PostgreSQL away", _stop_postgresql, environment="replicated"),
    Scenario("everything restarted in turns", _restart_all, environment="replicated"),
    Scenario("network cut", _unplug, environment="cable"),
    Scenario("network half-open", _open_half, environment="cable"),
    Scenario("results sent again and again", _report_repeatedly),
    Scenario("results of a session that was replaced", _report_from_fenced_session),
    Scenario("impossible times", _candidate("lie", Outcome.UNKNOWN, "measurement is impossible")),
    Scenario("times that are no number", _times(float("nan"), 0.001)),
    Scenario("times of nothing", _times(0.0)),
    Scenario("times before they began", _times(-0.001)),
)
