"""Load one server with simulated workers: trials stored a second and latency of leases.

    python -m benchmarks.scale --json FILE
    python -m benchmarks.scale --servers 2 --schedulers 2 --json FILE

The server, PostgreSQL, Redis and the simulated workers share this machine. A simulated worker speaks the
workers' protocol over a connection of its own, but waits instead of measuring. Twenty workers each share a
device class, which has one job with more trials than are used up. A lease's latency runs from a call that
finds pending trials until its answer, and the same call stores the results of the lease before. A worker that
finds none waits; this time is reported apart.

With --schedulers, no trials exist beforehand: schedulers import a network and plan them, for a hundred
workers of a class. The load runs with one server and one scheduler, then with more, up to the numbers given.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

from benchmarks.arguments import command_parser, positive
from benchmarks.results import figures
from benchmarks.results.figures import Figure, at_least, at_most, figure
from benchmarks.results.metrics import CORES_USED, TRIALS_STORED
from benchmarks.results.output import Output
from benchmarks.simulated_workers import OURS, SPREAD, FleetStats, lease_s, simulated_device
from core.job import Budget, JobState
from examples.make_models import make
from records import devices
from records.jobs import jobs, models, tasks, trials
from records.jobs.jobs import JobRequest
from records.jobs.trials import NewTrial
from records.storage import blobs
from records.storage.database import Database
from tests import services

WORKERS, QUICK_WORKERS = 1000, 100
# The workers of a device class share one job.
CLASS_SIZE = 20
# The duration of a trial: 1,000 workers, or 100 with --quick, then offer 2,222 trials a second.
TRIAL_S, QUICK_TRIAL_S = 0.45, 0.045
STORED_AIM, LEASE_AIM_MS = 2000.0, 100.0
# The length of a real trace of a tiled convolution.
TRACE_CHARS = 3000
CORES = 2
# Calls a second on a slow machine, which is how many workers a second get their first lease.
SLOWEST_CALLS = 40.0
# An upper bound of the trials that one worker stores in a second when it doesn't wait.
FASTEST = 4000.0
# All workers work for this long before counting begins: a fleet's first leases are small, so calls queue at
# first. The leases of --quick are shorter.
WARM_UP_S, WARM_UP_ALONE_S, QUICK_WARM_UP_S = 30.0, 5.0, 5.0
# With schedulers: a job for each class, and more trials offered than they plan. The default is a class for
# each scheduler, because a job is planned by one at a time.
PLANNED_CLASS_SIZE = 100
PLANNED_TRIALS = 1_000_000
# The cores' utilization if nothing else limits them.
BUSY = 0.9
# Fewer leases have no 99th percentile.
MIN_LEASES = 100


class ScaleError(Exception):
    """The benchmark can't run; the message is one sentence."""


@dataclass(frozen=True)
class Load:
    """`workers` on `servers`, measured after `warm_up_s` for `seconds`, or for longer if fewer than
    MIN_LEASES are likely by then; a trial takes `trial_s`.

    Without `schedulers`, the trials are there before.
    """

    workers: int
    seconds: float
    warm_up_s: float
    trial_s: float
    servers: int = 1
    schedulers: int = 0

    @property
    def classes(self) -> int:
        return -(-self.workers // (PLANNED_CLASS_SIZE if self.schedulers else CLASS_SIZE))

    @property
    def lasts_s(self) -> float:
        """The seconds of the measurement: at least as long as twice MIN_LEASES take on these devices."""
        return max(self.seconds, 2 * MIN_LEASES * lease_s(self.trial_s) / self.workers)


@dataclass(frozen=True)
class Backends:
    """The database and the broker of servers, and the process ids of both by name.

    `settle` runs the database's background work after bulk writes (VACUUM ANALYZE, CHECKPOINT).
    """

    database_url: str
    broker: str
    pids: Mapping[str, int]
    settle: Callable[[], None]


@dataclass(frozen=True)
class Service:
    """A running server with its addresses for clients and for workers."""

    http: str
    fleet: str
    pid: int


LEASE_P99 = "time to lease, p99"
WAIT_P99, WAITING = "wait for a plan, p99", "part of the devices' time spent waiting for a plan"


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    output = Output("benchmarks.scale", argv, args.json, CORES)
    try:
        if args.schedulers:
            workers = args.workers or PLANNED_CLASS_SIZE * args.schedulers
            found = measure_planned(workers, args.seconds, args.servers, args.schedulers)
        else:
            workers = args.workers or (QUICK_WORKERS if args.quick else WORKERS)
            trial_s, warm_up_s = (QUICK_TRIAL_S, QUICK_WARM_UP_S) if args.quick else (TRIAL_S, WARM_UP_S)
            found = measure(workers, args.seconds, trial_s, warm_up_s)
    except (ScaleError, services.Missing) as error:
        output.fail(error)
        return 1
    output.finish(found)
    return 0


def measure(workers: int, seconds: float, trial_s: float, warm_up_s: float) -> list[Figure]:
    """Measure the four loads and return their figures. Raises ScaleError, Missing."""
    all_of_them = Load(workers, seconds, warm_up_s, trial_s)
    with _backends() as under:
        busy = under("busy", all_of_them)
        alone = under("alone", Load(1, seconds, min(warm_up_s, WARM_UP_ALONE_S), 0.0))
        if busy.stored == 0:
            raise ScaleError("nothing was stored: measure for longer")
        # Calls queue where more is offered than can be stored, so leases are timed at half of that, too.
        half = under("half", replace(all_of_them, trial_s=max(2 * workers / busy.a_second, trial_s)))
        two = under("two", replace(all_of_them, servers=2))
    return figures_of(all_of_them, busy, alone, half, two)


def measure_planned(workers: int, seconds: float, servers: int, schedulers: int) -> list[Figure]:
    """Measure one to that many servers and schedulers. Raises ScaleError, Missing."""
    found = []
    with _backends() as under:
        for count, planning in itertools.product(range(1, servers + 1), range(1, schedulers + 1)):
            load = Load(workers, seconds, WARM_UP_S, TRIAL_S, count, planning)
            found += planned_figures(load, under(f"{count}_{planning}", load))
    return found


def planned_figures(load: Load, seen: FleetStats) -> list[Figure]:
    """Return the figures of a load with schedulers; the first one says what limits it."""
    used = {name: seconds / seen.seconds for name, seconds in seen.cpu_s.items()}
    planning = sum(cores for name, cores in used.items() if name.startswith("scheduler"))
    if sum(used.values()) >= BUSY * CORES:
        limit = f"the machine's {CORES} cores"
    elif planning >= BUSY * load.schedulers:
        limit = "planning: a scheduler takes one step at a time"
    elif seen.a_second >= BUSY * load.workers / load.trial_s:
        limit = "the devices"
    else:
        limit = "waiting, for one another or the disk"
    label = f"{load.servers} servers, {load.schedulers} schedulers"
    kinds = ("server", "scheduler", "PostgreSQL", "Redis", OURS)
    wait_ms = 1e3 * (_quantile(seen.wait_s, 99) if len(seen.wait_s) > 1 else sum(seen.wait_s))
    leases = []
    if len(seen.lease_s) >= MIN_LEASES:
        note = f"{len(seen.lease_s)} leases at once"
        leases = [figure(LEASE_P99, 1e3 * _percentile(seen, 99), "ms", subject=label, note=note)]
    return [
        figure(TRIALS_STORED, seen.a_second, "/s", subject=label, note=f"limited by {limit}"),
        *leases,
        figure(WAIT_P99, wait_ms, "ms", subject=label, note=f"{len(seen.wait_s)} leases after a wait"),
        figure(WAITING, _waiting(load, seen), "", subject=label),
        *(
            figure(
                CORES_USED,
                sum(cores for name, cores in used.items() if name.startswith(kind)),
                "",
                subject=label,
                condition=kind,
            )
            for kind in kinds
        ),
    ]


@contextlib.contextmanager
def _backends() -> Iterator[Callable[[str, Load], FleetStats]]:
    """Start PostgreSQL and Redis; yield a function that runs a load in a new database. Raises Missing."""
    with contextlib.ExitStack() as started:
        folder = Path(started.enter_context(tempfile.TemporaryDirectory()))
        postgresql = started.enter_context(services.postgresql(durable=True))
        broker = started.enter_context(services.redis_server())
        pids = {"PostgreSQL": postgresql.pid, "Redis": broker.pid}

        def under(name: str, load: Load) -> FleetStats:
            database = f"scale_{name}"
            settle = functools.partial(postgresql.settle, database)
            backends = Backends(postgresql.create(database), broker.url, pids, settle)
            _say(f"{name}: {load.workers} workers, {load.trial_s:.2f} s a trial, servers: {load.servers}")
            return run_load(backends, load, folder)

        yield under


def run_load(backends: Backends, load: Load, folder: Path) -> FleetStats:
    """Run the load and return the workers' statistics. Raises ScaleError when more is stored than
    acknowledged."""
    with contextlib.ExitStack() as started:
        running = [started.enter_context(serving(backends, folder)) for _ in range(load.servers)]
        database = Database(backends.database_url)
        started.callback(database.close)
        made = (
            queue(database, load.classes)
            if load.schedulers
            else fill(database, load.classes, _trials_needed(load))
        )
        # The bulk insert of trials is no part of the measurement.
        backends.settle()
        named = {f"server {number}": service.pid for number, service in enumerate(running, 1)}
        for number in range(1, load.schedulers + 1):
            log = folder / f"scheduler {number}.log"
            process = started.enter_context(_process("tunefarm scheduler", backends, {}, log))
            named[f"scheduler {number}"] = process.pid
        seen = _simulate([service.fleet for service in running], load, {**backends.pids, **named})
        with database.begin() as session:
            done = sum(trials.counts(session, job_id).done for job_id in made)
    if done > seen.acknowledged:
        raise ScaleError(f"{seen.acknowledged} results were acknowledged, but {done} are stored")
    return replace(seen, late=seen.acknowledged - done)


def figures_of(
    load: Load, busy: FleetStats, alone: FleetStats, half: FleetStats, two: FleetStats
) -> list[Figure]:
    """Return the figures of four loads. `busy`: all workers at the pace of devices, which is `load`. `alone`:
    one worker without waiting. `half`: all workers offering half of what is stored. `two`: all workers on
    two servers.
    """
    lease_ms = {rank: f"one worker: {figures.number(1e3 * _percentile(alone, rank))} ms" for rank in (50, 99)}
    everyone, offers = f"{load.workers} workers", load.workers / load.trial_s
    offered = f"{everyone}, {offers:.0f} trials offered a second"
    fewer = f"{everyone}, {half.a_second:.0f} trials stored a second"
    # Fewer workers don't offer enough to reach the aim.
    aim = at_least(STORED_AIM) if offers >= STORED_AIM else None
    one = f"one worker: {figures.number(alone.a_second)} /s"
    slow, median, soon = 1e3 * _percentile(busy, 99), 1e3 * _percentile(half, 50), 1e3 * _percentile(half, 99)
    late = float(sum(seen.late for seen in (busy, alone, half, two)))
    one_server = f"one server: {figures.number(busy.a_second)} /s"
    return [
        figure(TRIALS_STORED, busy.a_second, "/s", condition=offered, aim=aim, note=one),
        figure(LEASE_P99, slow, "ms", condition=offered, aim=at_most(LEASE_AIM_MS), note=lease_ms[99]),
        figure(WAITING, _waiting(load, busy), "", condition=offered),
        figure(LEASE_P99, soon, "ms", condition=fewer, note=lease_ms[99]),
        figure("time to lease, median", median, "ms", condition=fewer, note=lease_ms[50]),
        figure("results that came too late to count", late, ""),
        *(_used(name, busy, alone) for name in ("server 1", "PostgreSQL", "Redis", OURS)),
        figure(TRIALS_STORED, two.a_second, "/s", subject="two servers", condition=offered, note=one_server),
        figure(LEASE_P99, 1e3 * _percentile(two, 99), "ms", subject="two servers", condition=offered),
    ]


def _used(name: str, busy: FleetStats, alone: FleetStats) -> Figure:
    """Return how many cores one of the processes on the machine used."""
    note = f"one worker: {figures.number(alone.cpu_s[name] / alone.seconds)}"
    return figure(CORES_USED, busy.cpu_s[name] / busy.seconds, "", condition=name, note=note)


def queue(database: Database, classes: int) -> list[str]:
    """Create a job of a small network for every device class, from nothing; return the ids."""
    made = []
    data = make("resnet18", tiny=True).SerializeToString()
    for number in range(classes):
        with database.begin() as session:
            sha, device, job_id = blobs.put(session, data), simulated_device(number), f"job {number}"
            models.add(session, sha, "resnet18", 0.0)
            devices.put_class(session, device)
            request = JobRequest(sha, "resnet18", {}, device.key, Budget(PLANNED_TRIALS), seed=number)
            jobs.create(session, job_id, request, jobs.Submission(0.0))
        made.append(job_id)
    return made


def fill(database: Database, classes: int, each: int, subgraphs: int = 1) -> list[str]:
    """Create a tuning job for every device class, with `each` trials spread over `subgraphs` subgraphs;
    return the ids."""
    made = []
    for number in range(classes):
        with database.begin() as session:
            job_id, device = f"job {number}", simulated_device(number)
            workloads = [f"workload {number}.{at}" for at in range(subgraphs)]
            sha = blobs.put(session, b"a model")
            models.add(session, sha, "model", 0.0)
            devices.put_class(session, device)
            request = JobRequest(sha, "model", {}, device.key, Budget(each))
            jobs.create(session, job_id, request, jobs.Submission(0.0))
            jobs.set_device_class(session, job_id, device.key)
            jobs.advance(session, job_id, {JobState.QUEUED}, JobState.TUNING, 0.0)
            for workload in workloads:
                tasks.put_workload(session, workload, "{}")
            specs = [
                tasks.TaskSpec(job_id, name, f"conv{at}", 1, 1e9, True, "", (), num_bytes=1e7)
                for at, name in enumerate(workloads)
            ]
            tasks.add_tasks(session, job_id, specs)
            turns = itertools.cycle(tasks.for_job(session, job_id))
            new = [_trial(task, at) for at, task in zip(range(each), turns, strict=False)]
            trials.add(session, job_id, 1, new, 0.0)
        made.append(job_id)
    return made


def _trial(task: tasks.Task, number: int) -> NewTrial:
    values = {"sketch": 0, "values": [[number, 1, 2, 3]] * 16}
    return NewTrial(task.id, task.workload_hash, values, trace(number), 1e-3)


@functools.cache
def trace(number: int) -> str:
    """Return a trace as long and about as repetitive as a real one; jobs share traces."""
    draw = random.Random(number)
    steps: list[list[object]] = []
    while len(text := json.dumps(steps)) < TRACE_CHARS:
        at = len(steps)
        factors = [draw.randrange(1, 64) for _ in range(4)]
        steps += [["SamplePerfectTile", [f"l{at}"], factors, [f"v{at}", f"v{at + 1}"]] for _ in range(4)]
    return text


def _trials_needed(load: Load) -> int:
    """Return how many trials a class needs so that the load can't use them up."""
    per_second = load.workers * (FASTEST if load.trial_s == 0.0 else 1.0 / load.trial_s)
    one_s = lease_s(load.trial_s)
    begins_s = max(load.workers / SLOWEST_CALLS, SPREAD * one_s) + load.warm_up_s
    lasts_s = begins_s + load.lasts_s + one_s
    return int(per_second * lasts_s / load.classes)


@contextlib.contextmanager
def serving(backends: Backends, folder: Path, **settings: str) -> Iterator[Service]:
    """Run a server in a separate process, with additional `settings`.

    Raises ScaleError when it doesn't start.
    """
    port, grpc_port = services.free_port(), services.free_port()
    ours = {
        "TUNEFARM_PORT": str(port),
        "TUNEFARM_GRPC_PORT": str(grpc_port),
        "TUNEFARM_RATE_LIMIT": "off",
        **settings,
    }
    log = folder / f"server {port}.log"
    with _process("server", backends, ours, log) as process:
        service = Service(f"http://127.0.0.1:{port}", f"127.0.0.1:{grpc_port}", process.pid)
        _wait_until_ready(service.http, process, log)
        yield service


@contextlib.contextmanager
def _process(
    command: str, backends: Backends, settings: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run `python -m` with the command on these back ends; what it writes goes to `log`."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("TUNEFARM_")}
    ours = {"TUNEFARM_DATABASE_URL": backends.database_url, "TUNEFARM_BROKER": backends.broker, **settings}
    with log.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", *command.split()],
            env=plain | ours,
            stdout=written,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _wait_until_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/readyz", trust_env=False, verify=False).is_success:
                return
        time.sleep(0.1)
    raise ScaleError(f"the server did not start: {log.read_text(errors='replace')[-500:]}")


def _simulate(addresses: Sequence[str], load: Load, pids: Mapping[str, int]) -> FleetStats:
    options = {
        "--workers": load.workers,
        "--classes": load.classes,
        "--seconds": load.lasts_s,
        "--warm-up-s": load.warm_up_s,
        "--trial-s": load.trial_s,
    }
    given = [*options.items(), *(("--server", address) for address in addresses)]
    given += [("--pid", f"{name}={pid}") for name, pid in pids.items()]
    words = [str(word) for pair in given for word in pair]
    command = [sys.executable, "-m", "benchmarks.simulated_workers", *words]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise ScaleError("the simulated workers failed: what they wrote says why")
    return FleetStats(**json.loads(done.stdout))


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _waiting(load: Load, seen: FleetStats) -> float:
    """Return the part of the devices' time in which they found no pending trial."""
    return sum(seen.wait_s) / (load.workers * seen.seconds)


def _percentile(seen: FleetStats, rank: int) -> float:
    """Return a percentile of lease latencies in seconds. Raises ScaleError when there are too few leases."""
    if len(seen.lease_s) < MIN_LEASES:
        raise ScaleError(f"only {len(seen.lease_s)} leases were answered: measure for longer")
    return _quantile(seen.lease_s, rank)


def _quantile(seconds: Sequence[float], rank: int) -> float:
    return statistics.quantiles(seconds, n=100)[rank - 1]


def _parser() -> argparse.ArgumentParser:
    quick = f"{QUICK_WORKERS} workers with short trials instead of {WORKERS}, in less than ten minutes"
    parser = command_parser("benchmarks.scale", __doc__, quick)
    parser.add_argument("--workers", type=positive, help=f"[{WORKERS}]")
    parser.add_argument(
        "--servers", type=positive, default=1, help="with --schedulers: measure with up to this many [1]"
    )
    parser.add_argument(
        "--schedulers", type=positive, help="measure with up to this many that plan the trials"
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="of each measurement [15]")
    return parser


if __name__ == "__main__":
    sys.exit(main())
