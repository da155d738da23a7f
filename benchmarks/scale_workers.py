"""Workers without devices, all in this process: they lease, wait as if they measured, and report.

    python -m benchmarks.scale_workers --server HOST:PORT --workers 1000 --classes 50 --seconds 9 --trial-s 1

Writes what they saw to standard output, as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import sys
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import grpc.aio

from benchmarks.arguments import positive
from proto import fleet_pb2 as pb
from proto.convert import device_to_wire
from proto.fleet_pb2_grpc import FleetStub
from proto.values import PROTOCOL
from search.device import Device

SLOTS = 16
WAIT_S = 5.0
# How long all workers work before anything counts.
WARM_UP_S = 3.0
_CALL_TIMEOUT_S = 60.0
# Every worker has a connection of its own, as on machines of their own.
_OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]


@dataclass
class Seen:
    """By all workers together, within `seconds`: how many results were acknowledged, and how long calls took
    that were answered with a lease. `acknowledged` counts those before and after too; so many of these were
    `late`: their lease had lapsed, so they were dropped."""

    seconds: float
    stored: int = 0
    acknowledged: int = 0
    lease_s: list[float] = field(default_factory=list)
    late: int = 0

    @property
    def a_second(self) -> float:
        return self.stored / self.seconds


class Clock:
    """Counting begins when every one of the workers has had a lease, and WARM_UP_S later; then it lasts for
    so many seconds."""

    def __init__(self, workers: int, seconds: float) -> None:
        self._missing = workers
        self._seconds = seconds
        self._begin = math.inf

    def first_lease(self, now: float) -> None:
        self._missing -= 1
        if self._missing == 0:
            self._begin = now + WARM_UP_S

    def counts(self, now: float) -> bool:
        return self._begin <= now < self._begin + self._seconds

    def is_over(self, now: float) -> bool:
        return now >= self._begin + self._seconds


def device_of(number: int) -> Device:
    """A device of the class of this number."""
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


class Worker:
    """One worker's side of the protocol."""

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

    async def work(self, clock: Clock, seen: Seen) -> None:
        """Until the time is up; what was leased then is still reported."""
        now = asyncio.get_running_loop().time
        # Not all at once: devices don't begin together.
        await asyncio.sleep(random.uniform(0.0, self._trial_s * SLOTS))
        results: list[pb.Result] = []
        is_new = True
        while not clock.is_over(began := now()):
            answer = await self._call(results, slots=SLOTS)
            _note(answer, began, now(), clock, seen)
            results = measured(answer.lease)
            if results and is_new:
                clock.first_lease(now())
                is_new = False
            await asyncio.sleep(self._trial_s * len(results))
        answer = await self._call(results)
        seen.acknowledged += len(answer.acknowledged)

    async def _call(
        self, results: Sequence[pb.Result] = (), *, starting: bool = False, slots: int = 0
    ) -> pb.SynchronizeResponse:
        wait_s = WAIT_S if slots else 0.0
        request = pb.SynchronizeRequest(starting=starting, results=results, slots=slots, wait_s=wait_s)
        request.MergeFrom(self._request)
        answer: pb.SynchronizeResponse = await self._stub.Synchronize(request, timeout=_CALL_TIMEOUT_S)  # type: ignore[misc]
        return answer


def _note(answer: pb.SynchronizeResponse, began: float, now: float, clock: Clock, seen: Seen) -> None:
    seen.acknowledged += len(answer.acknowledged)
    if clock.counts(now):
        seen.stored += len(answer.acknowledged)
        if answer.lease.candidates:
            seen.lease_s.append(now - began)


def measured(lease: pb.Lease) -> list[pb.Result]:
    """A result for each candidate."""
    went_well = pb.Measurement(outcome="OUTCOME_OK", run_secs=[1e-3, 1.1e-3, 1.2e-3], build_secs=0.05)
    return [
        pb.Result(number=number, lease=lease.id, trial_id=candidate.trial_id, measurement=went_well)
        for number, candidate in enumerate(lease.candidates, 1)
    ]


async def run(address: str, workers: int, classes: int, seconds: float, trial_s: float) -> Seen:
    """What so many workers saw, evenly spread over the classes."""
    fleet = [Worker(address, number, device_of(number % classes), trial_s) for number in range(workers)]
    for first in range(0, workers, 50):
        await asyncio.gather(*(worker.enter() for worker in fleet[first : first + 50]))
    clock, seen = Clock(workers, seconds), Seen(seconds)
    await asyncio.gather(*(worker.work(clock, seen) for worker in fleet))
    return seen


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scale_workers")
    parser.add_argument("--server", required=True, metavar="HOST:PORT")
    parser.add_argument("--workers", type=positive, required=True)
    parser.add_argument("--classes", type=positive, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--trial-s", type=float, required=True)
    args = parser.parse_args(argv)
    random.seed(time.time_ns())
    seen = asyncio.run(run(args.server, args.workers, args.classes, args.seconds, args.trial_s))
    json.dump(asdict(seen), sys.stdout)
    return 0


if __name__ == "__main__":
    sys.exit(main())
