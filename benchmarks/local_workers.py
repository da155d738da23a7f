"""Compare the trials per second of two workers and of one worker on a machine, each with its own core.

    python -m benchmarks.local_workers --quick --json FILE

Server, scheduler and workers are real processes, and ResNet-18 is tuned from an empty database, with one
worker and with two in turns. Each worker has one thread and is pinned to one core; server and scheduler
share those cores. Trials are counted over the middle half of a job, without the import of the model and
without the end.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import psutil

from benchmarks.arguments import command_parser, positive
from benchmarks.results import figures
from benchmarks.results.figures import Figure, at_least, figure, ratio_figure
from benchmarks.results.metrics import TRIALS_A_SECOND
from benchmarks.results.output import Output
from benchmarks.simulated_workers import CpuMeter
from benchmarks.timing.interleaved import Timings
from core.worker import WorkerState
from examples.make_models import make
from records.fleet import workers
from records.fleet.workers import WorkerInfo
from records.jobs import jobs, trials
from records.storage.database import Database
from tests.faults.rig import ROOT, Program, free_port
from tunefarm.client.client import Client, ClientError
from tunefarm.client.values import JobRequest

RUNS, QUICK_RUNS = 5, 2
TRIALS, QUICK_TRIALS = 400, 160
AIM = 1.8
HOST = "127.0.0.1"
CORES = 2
# The time limit of each wait. Half of a job takes minutes on a slow core.
PATIENCE_S = 900.0
POLL_S = 0.1
TOPOLOGY = Path("/sys/devices/system/cpu")


class LocalWorkersError(Exception):
    """The benchmark can't run, or its run isn't a valid measurement. The message says why."""


@dataclass(frozen=True)
class Plan:
    """The settings: `runs` jobs with one worker and as many with two, each with `trials` trials, on
    `cores`."""

    runs: int
    trials: int
    cores: Sequence[int]
    tiny: bool = False

    @property
    def middle(self) -> tuple[int, int]:
        """The numbers of trials at which the measured window starts and ends. At first, trials wait for
        imports and for the untuned model's timing. At the end, there are too few trials for both workers."""
        return self.trials // 4, 3 * self.trials // 4


@dataclass(frozen=True)
class WindowStats:
    """The measured window: `trials` in `seconds`, in which server and scheduler used `service_cpu_s` of CPU
    time.

    `failed` is the fraction of failed trials until its end.
    """

    trials: int
    seconds: float
    service_cpu_s: float
    failed: float


@dataclass(frozen=True)
class Checkpoint:
    """The finished trials and the service's CPU time at one time."""

    done: int
    at_s: float
    service_cpu_s: float


class LocalService:
    """A service with an empty database, and single-threaded workers, each on its own core."""

    def __init__(self, folder: Path, cores: Sequence[int]) -> None:
        self._folder = folder
        self._cores = cores
        port, grpc_port = free_port(HOST), free_port(HOST)
        self._url, self._fleet = f"http://{HOST}:{port}", f"{HOST}:{grpc_port}"
        plain = {name: value for name, value in os.environ.items() if not name.startswith("TUNEFARM_")}
        self._environment = plain | {
            "PYTHONPATH": str(ROOT),
            "TUNEFARM_DATABASE_URL": f"sqlite:///{folder / 'tunefarm.db'}",
            "TUNEFARM_BROKER": str(folder / "broker"),
            "TUNEFARM_PORT": str(port),
            "TUNEFARM_GRPC_PORT": str(grpc_port),
            "TUNEFARM_RATE_LIMIT": "off",
        }
        self._database = Database(f"sqlite:///{folder / 'tunefarm.db'}")
        self._service = [self._program(name, cores) for name in ("server", "scheduler")]
        self._workers: dict[int, Program] = {}
        self._job_id = ""

    def start(self, count: int) -> None:
        """Start the service and the workers, and wait until all are ready. Raises LocalWorkersError."""
        self._database.migrate()
        for program in self._service:
            program.start()
        with Client(self._url) as client:
            self._until(lambda: _answers(client), "the server did not answer")
        for number, core in enumerate(self._cores[:count], 1):
            flags = ("--server", self._fleet, "--name", f"worker-{number}", "--threads", "1")
            self._workers[core] = self._program("worker", [core], *flags, log=f"worker-{number}")
            self._workers[core].start()
        self._until(lambda: self._are_ready(count), "the workers did not get ready")
        if len({worker.device_class for worker in self._known_workers()}) > 1:
            raise LocalWorkersError("the workers are of different device classes, so they share no job")

    def submit(self, model: Path, trials_: int) -> None:
        with Client(self._url) as client:
            self._job_id = client.submit(JobRequest(client.upload(model).sha256, trials_)).id

    def middle(self, first: int, last: int) -> WindowStats:
        """Measure from the `first` to the `last` number of trials done. Raises LocalWorkersError."""
        begin = self._mark(first)
        self._check_cores()
        end = self._mark(last)
        known = self._known_workers()
        for worker in known:
            if worker.trials_done == 0:
                raise LocalWorkersError(f"{worker.id} measured nothing")
        failed = sum(worker.failures for worker in known) / sum(worker.trials_done for worker in known)
        used_s = end.service_cpu_s - begin.service_cpu_s
        return WindowStats(end.done - begin.done, end.at_s - begin.at_s, used_s, failed)

    def close(self) -> None:
        for program in (*self._workers.values(), *reversed(self._service)):
            program.stop()
        self._database.close()

    def _program(self, kind: str, cores: Sequence[int], *flags: str, log: str = "") -> Program:
        pinned = ("taskset", "-c", ",".join(map(str, cores)))
        command = (*pinned, sys.executable, "-P", "-m", kind, *flags)
        return Program(command, self._environment, self._folder / f"{log or kind}.log")

    def _mark(self, done: int) -> Checkpoint:
        """Wait until `done` trials are done, then read the clocks."""
        self._until(lambda: self._done() >= done, f"there were no {done} results")
        used_s = CpuMeter({one.log.stem: _running(one).pid for one in self._service}).read()
        return Checkpoint(self._done(), time.monotonic(), used_s["server"] + used_s["scheduler"])

    def _done(self) -> int:
        """Return the number of finished trials. Raises LocalWorkersError if the job has ended."""
        with self._database.begin() as session:
            job = jobs.get(session, self._job_id)
            done = trials.counts(session, self._job_id).done
        if job.state.finished:
            raise LocalWorkersError(f"the job ended after {done} trials: {job.error or job.message}")
        return done

    def _known_workers(self) -> list[WorkerInfo]:
        with self._database.begin() as session:
            return workers.list_workers(session)

    def _are_ready(self, count: int) -> bool:
        return [worker.state for worker in self._known_workers()] == [WorkerState.READY] * count

    def _check_cores(self) -> None:
        """Raise LocalWorkersError if a thread of a worker may run on another core, because libraries may pin
        threads."""
        for core, worker in self._workers.items():
            found = _cores_of(_running(worker))
            if found != {core}:
                raise LocalWorkersError(f"a worker may use the cores {sorted(found)}, not {core} alone")

    def _until(self, true: Callable[[], bool], otherwise: str) -> None:
        """Wait for a condition. Raises LocalWorkersError after PATIENCE_S or when a process ends."""
        programs = [*self._service, *self._workers.values()]
        deadline = time.monotonic() + PATIENCE_S
        while not true():
            ended = [one for one in programs if one.exit_code() is not None]
            if ended or time.monotonic() > deadline:
                words = [f"{one.log.name}: {one.output()[-1000:]}" for one in ended or programs]
                raise LocalWorkersError("\n".join([otherwise, *words]))
            time.sleep(POLL_S)


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 if the measurement failed. Missed aims don't count."""
    args = _parser().parse_args(argv)
    output = Output("benchmarks.local_workers", argv, args.json, CORES)
    try:
        found = measure(_plan(args), output.say)
    except (LocalWorkersError, ClientError) as error:
        output.fail(error)
        return 1
    output.finish(found)
    return 0


def measure(plan: Plan, say: Callable[[str], None]) -> list[Figure]:
    """Run jobs with one and with two workers in turns. Return the figures. Raises LocalWorkersError,
    ClientError."""
    seen: dict[int, list[WindowStats]] = {1: [], 2: []}
    for run in range(1, plan.runs + 1):
        for count, found in seen.items():
            say(f"run {run} of {plan.runs}, {_label(count)} ...")
            found.append(_run(plan, count))
    return figures_of(seen[1], seen[2])


def figures_of(one: Sequence[WindowStats], two: Sequence[WindowStats]) -> list[Figure]:
    """Return the figures of equally many runs with one worker and with two. Ratios are of runs of the same
    turn."""
    alone, both = _timings(one), _timings(two)
    gain = alone.ratio_to(both)
    note = f"one worker: {figures.number(alone.per_s.value)} /s"
    found = [
        ratio_figure(TRIALS_A_SECOND, gain, "one worker", "two workers", aim=at_least(AIM), note=note),
    ]
    for count, seen, timings in ((1, one, alone), (2, two, both)):
        who = _label(count)
        cores = [each.service_cpu_s / each.seconds for each in seen]
        cpu_ms = [1e3 * each.service_cpu_s / each.trials for each in seen]
        failed = 100 * statistics.median(each.failed for each in seen)
        found += [
            figure(TRIALS_A_SECOND, timings.per_s.value, "/s", subject=who, spread=timings.per_s.spread),
            figure("cores used by server and scheduler", statistics.median(cores), "", subject=who),
            figure(
                "CPU time of server and scheduler for a trial", statistics.median(cpu_ms), "ms", subject=who
            ),
            figure("trials that failed", failed, "%", subject=who),
        ]
    return found


def own_cores() -> list[int]:
    """Return the first CPU of every physical core that this process may use."""
    found: dict[tuple[str, str], int] = {}
    for cpu in sorted(os.sched_getaffinity(0)):
        folder = TOPOLOGY / f"cpu{cpu}" / "topology"
        try:
            core = (folder / "physical_package_id").read_text(), (folder / "core_id").read_text()
        except OSError:  # if the topology is unknown, each CPU counts as a core
            core = "", str(cpu)
        found.setdefault(core, cpu)
    return list(found.values())


def _run(plan: Plan, count: int) -> WindowStats:
    with tempfile.TemporaryDirectory(prefix="tunefarm-benchmark-") as name, _farm(Path(name), plan) as farm:
        model = Path(name) / "resnet18.onnx"
        onnx.save(make("resnet18", tiny=plan.tiny), model)
        farm.start(count)
        farm.submit(model, plan.trials)
        return farm.middle(*plan.middle)


@contextlib.contextmanager
def _farm(folder: Path, plan: Plan) -> Iterator[LocalService]:
    farm = LocalService(folder, plan.cores)
    try:
        yield farm
    finally:
        farm.close()


def _timings(seen: Sequence[WindowStats]) -> Timings:
    return Timings(tuple(each.seconds / each.trials for each in seen))


def _answers(client: Client) -> bool:
    try:
        client.workers()
    except ClientError:
        return False
    return True


def _running(program: Program) -> psutil.Process:
    assert program.process is not None, "started"
    return psutil.Process(program.process.pid)


def _cores_of(process: psutil.Process) -> set[int]:
    """Return the CPUs on which the threads of a process and of its children may run."""
    cores: set[int] = set()
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
            for thread in each.threads():
                cores |= os.sched_getaffinity(thread.id)
    return cores


def _label(count: int) -> str:
    return "one worker" if count == 1 else "two workers"


def _plan(args: argparse.Namespace) -> Plan:
    """Raises LocalWorkersError."""
    cores = own_cores()
    if len(cores) < CORES:
        raise LocalWorkersError(f"two workers need two cores, and here is {len(cores)}: use another machine")
    runs = args.runs or (QUICK_RUNS if args.quick else RUNS)
    trials_ = args.trials or (QUICK_TRIALS if args.quick else TRIALS)
    return Plan(runs, trials_, cores[:CORES], args.tiny)


def _parser() -> argparse.ArgumentParser:
    quick = f"{QUICK_RUNS} runs with {QUICK_TRIALS} trials each, in less than ten minutes"
    parser = command_parser("benchmarks.local_workers", __doc__, quick)
    parser.add_argument("--runs", type=positive, help=f"with one worker, and with two [{RUNS}]")
    parser.add_argument("--trials", type=positive, help=f"of every job [{TRIALS}]")
    parser.add_argument("--tiny", action="store_true", help="a small network of the same kind, to try it out")
    return parser


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that nothing is left behind
    sys.exit(main())
