"""Simulated workers, all in one process: they lease, wait instead of measuring, and report.

    python -m benchmarks.simulated_workers --server HOST:PORT --workers 99 --classes 5 --seconds 9 --trial-s 1

Writes their statistics to standard output as JSON, and progress to standard error.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import random
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

import grpc.aio
import psutil

from benchmarks.arguments import positive
from core.device import Device
from proto import fleet_pb2 as pb
from proto.convert import device_to_wire
from proto.fleet_pb2_grpc import FleetStub
from proto.messages import PROTOCOL
from records.fleet.fair_queue import LEASE_S
from worker.settings import SLOTS

WAIT_S = 5.0
# Workers start at random within this many leases: devices don't start together.
SPREAD = 2
# The limit until every worker has had a lease.
BEGIN_LIMIT_S = 180.0
OURS = "simulated workers"
_CALL_TIMEOUT_S = 60.0
# A worker waits this long, on average, before it calls an overloaded service again.
_RETRY_S = 1.0
# Every worker has its own connection, as if on its own machine.
_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


class TooSlow(Exception):
    """Not every worker got a lease in time; the message is one sentence."""


@dataclass
class FleetStats:
    """Statistics of all workers together.

    Within `seconds`, `stored` results were acknowledged, and processes used `cpu_s` of CPU by name. Calls
    that found pending trials took `lease_s`. Workers that found none waited `wait_s` until they had a lease.
    `acknowledged` counts results before and after, too; `late` ones of these were dropped because their lease
    had lapsed.
    """

    seconds: float
    stored: int = 0
    acknowledged: int = 0
    lease_s: list[float] = field(default_factory=list)
    wait_s: list[float] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)
    late: int = 0

    @property
    def a_second(self) -> float:
        return self.stored / self.seconds


class CountingWindow:
    """The time in which results count: from `warm_up_s` after every worker has had a lease, for `seconds`."""

    def __init__(self, workers: int, seconds: float, warm_up_s: float = 0.0) -> None:
        self.missing = workers
        self.seconds = seconds
        self._warm_up_s = warm_up_s
        self._begin = math.inf

    def first_lease(self, now: float) -> None:
        self.missing -= 1
        if self.missing == 0:
            self._begin = now + self._warm_up_s

    def counts(self, now: float) -> bool:
        return self._begin <= now < self._begin + self.seconds

    def is_over(self, now: float) -> bool:
        return now >= self._begin + self.seconds


class CpuMeter:
    """Reads the CPU time of processes with their children by name, and of this process as OURS."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = pids

    def read(self) -> dict[str, float]:
        """Return seconds of CPU so far."""
        others = {name: _cpu_s(psutil.Process(pid)) for name, pid in self._pids.items()}
        return others | {OURS: time.process_time()}


def _cpu_s(process: psutil.Process) -> float:
    total = 0.0
    for one in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def simulated_device(number: int) -> Device:
    """Return a device of the device class with this number."""
    return Device(
        name=f"simulated {number}",
        triple="x86_64-linux-gnu",
        mcpu="skylake",
        features=("avx2",),
        cores=number + 1,
        vector_bytes=32,
        l1_bytes=1 << 15,
        l2_bytes=1 << 20,
        l3_bytes=1 << 24,
        toolchain="simulated",
        target='{"kind":"llvm"}',
    )


class SimulatedWorker:
    """A worker's side of the protocol."""

    def __init__(self, address: str, number: int, device: Device, trial_s: float) -> None:
        self._stub = FleetStub(grpc.aio.insecure_channel(address, options=_OWN_CONNECTION))  # type: ignore[arg-type]
        self._request = pb.SynchronizeRequest(
            protocol=PROTOCOL,
            worker_id=f"simulated-{number}",
            session_id=uuid.uuid4().hex,
            state="WORKER_STATE_READY",
            device=device_to_wire(device),
        )
        self._trial_s = trial_s

    async def enter(self) -> None:
        await self._call(starting=True)

    async def work(self, clock: CountingWindow, seen: FleetStats) -> None:
        """Lease, wait and report until the window is over; then report what is still leased."""
        now = asyncio.get_running_loop().time
        await asyncio.sleep(random.uniform(0.0, SPREAD * lease_s(self._trial_s)))
        results: Sequence[pb.Result] = []
        is_new, is_waiting = True, False
        began = now()
        while not clock.is_over(now()):
            if not is_waiting:
                began = now()
            # The server answers a call with results at once; a call without any may wait there for trials.
            is_waiting |= not results
            answer = await self._call(results, slots=SLOTS)
            _note(answer, now(), clock, seen)
            results = []
            if not answer.lease.candidates:
                is_waiting = True
                continue
            if clock.counts(now()):
                (seen.wait_s if is_waiting else seen.lease_s).append(now() - began)
            is_waiting = False
            if is_new:
                clock.first_lease(now())
                is_new = False
            results = await self._measure(answer, clock, seen)
        answer = await self._call(results)
        seen.acknowledged += len(answer.acknowledged)

    async def _measure(
        self, answer: pb.SynchronizeResponse, clock: CountingWindow, seen: FleetStats
    ) -> Sequence[pb.Result]:
        """Wait as long as measuring would take, report when the server asks for it; return the results
        left to report."""
        now = asyncio.get_running_loop().time
        lease, results, sent, began = answer.lease.id, results_for(answer.lease), 0, now()
        ends = began + self._trial_s * len(results)
        while now() + answer.call_again_after_s < ends:
            await asyncio.sleep(answer.call_again_after_s)
            done = int((now() - began) / self._trial_s)
            answer = await self._call(results[sent:done], held=lease)
            _note(answer, now(), clock, seen)
            if answer.lease.id != lease:
                return []
            sent = done
        await asyncio.sleep(ends - now())
        return results[sent:]

    async def _call(
        self,
        results: Sequence[pb.Result] = (),
        *,
        starting: bool = False,
        slots: int = 0,
        held: pb.LeaseId | None = None,
    ) -> pb.SynchronizeResponse:
        request = pb.SynchronizeRequest(starting=starting, results=results, slots=slots, held=held)
        request.wait_s = WAIT_S if slots else 0.0
        request.MergeFrom(self._request)
        if held is not None:
            request.state = pb.WORKER_STATE_BUSY
        while True:
            try:
                answer: pb.SynchronizeResponse = await self._stub.Synchronize(  # type: ignore[misc]
                    request, timeout=_CALL_TIMEOUT_S
                )
                return answer
            except grpc.aio.AioRpcError as error:
                # A real worker calls again, too.
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(random.uniform(0.5, 1.5) * _RETRY_S)


def _note(answer: pb.SynchronizeResponse, now: float, clock: CountingWindow, seen: FleetStats) -> None:
    seen.acknowledged += len(answer.acknowledged)
    if clock.counts(now):
        seen.stored += len(answer.acknowledged)


def lease_s(trial_s: float) -> float:
    """Return the seconds that a lease takes on a device of this speed."""
    return min(LEASE_S, SLOTS * trial_s)


def results_for(lease: pb.Lease) -> list[pb.Result]:
    """Return a result for each candidate or module run of the lease."""
    went_well = pb.Measurement(outcome="OUTCOME_OK", run_s=[1e-3, 1.1e-3, 1.2e-3], build_s=0.05)
    results = [
        pb.Result(trial_id=candidate.trial_id, measurement=went_well) for candidate in lease.candidates
    ]
    results += [pb.Result(module_run_id=run.id, measurement=went_well) for run in lease.module_runs]
    for number, result in enumerate(results, 1):
        result.number = number
        result.lease.CopyFrom(lease.id)
    return results


async def run(
    addresses: Sequence[str],
    workers: int,
    classes: int,
    trial_s: float,
    clock: CountingWindow,
    meter: CpuMeter,
) -> FleetStats:
    """Run `workers`, evenly spread over `classes` and over the servers; return their statistics. Raises
    TooSlow."""
    fleet = [
        # Divided by `classes`, so that each server has workers of every class.
        SimulatedWorker(
            addresses[number // classes % len(addresses)], number, simulated_device(number % classes), trial_s
        )
        for number in range(workers)
    ]
    for first in range(0, workers, 50):
        await asyncio.gather(*(worker.enter() for worker in fleet[first : first + 50]))
    _say(f"{workers} workers are known")
    seen = FleetStats(clock.seconds)
    await asyncio.gather(_watch(clock, seen, meter), *(worker.work(clock, seen) for worker in fleet))
    return seen


async def _watch(clock: CountingWindow, seen: FleetStats, meter: CpuMeter) -> None:
    """Record the CPU time used within the window. Raises TooSlow."""
    now = asyncio.get_running_loop().time
    limit = now() + BEGIN_LIMIT_S
    while not clock.counts(now()):
        if clock.missing and now() > limit:
            raise TooSlow(f"after {BEGIN_LIMIT_S:.0f} s, {clock.missing} workers have not had a lease")
        await asyncio.sleep(0.05)
    _say("every worker works: counting begins")
    before = await asyncio.to_thread(meter.read)
    while clock.counts(now()):
        await asyncio.sleep(0.05)
    after = await asyncio.to_thread(meter.read)
    seen.cpu_s = {name: after[name] - before[name] for name in before}
    _say(f"{seen.a_second:.0f} trials stored a second")


def _say(words: str) -> None:
    print(f"  {words}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    random.seed(time.time_ns())
    meter = CpuMeter({name: int(pid) for name, _, pid in (pair.rpartition("=") for pair in args.pids)})
    clock = CountingWindow(args.workers, args.seconds, args.warm_up_s)
    try:
        seen = asyncio.run(run(args.servers, args.workers, args.classes, args.trial_s, clock, meter))
    except TooSlow as error:
        print(f"benchmarks.simulated_workers: {error}", file=sys.stderr)
        return 1
    json.dump(asdict(seen), sys.stdout)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulated_workers")
    parser.add_argument("--server", required=True, action="append", dest="servers", metavar="HOST:PORT")
    parser.add_argument("--workers", type=positive, required=True)
    parser.add_argument("--classes", type=positive, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--warm-up-s", type=float, required=True)
    parser.add_argument("--trial-s", type=float, required=True)
    parser.add_argument(
        "--pid",
        action="append",
        dest="pids",
        default=[],
        metavar="NAME=PID",
        help="a process whose CPU time is recorded",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
