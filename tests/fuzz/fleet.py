"""Send raw bytes to every method of the Fleet service, with and without credentials."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from random import Random
from typing import Any

import grpc
import grpc.aio

from benchmarks.simulated_workers import results_for, simulated_device
from proto import fleet_pb2 as pb
from proto.convert import device_to_wire
from proto.fleet_pb2_grpc import FleetStub
from proto.messages import PROTOCOL
from tests.fuzz.failures import Failures
from tests.fuzz.fleet_messages import METHODS, SERVICE, SYNCHRONIZE, Call, calls
from tests.fuzz.service import Growth, Service

KIND = "gRPC"
AT_ONCE = 16
SAMPLES = 40
# Recently cancelled calls may still get some of the trials.
SPARE = 64
# No answer takes this long unless the message waits for work. Such calls are cancelled soon.
TIMEOUT_S, WAITING_TIMEOUT_S = 60.0, 0.05
Code = grpc.StatusCode
# The statuses that fleet.proto names, without UNAVAILABLE and RESOURCE_EXHAUSTED, which can't occur here.
ANSWERS = frozenset({Code.OK, Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION, Code.NOT_FOUND})
EXPECTED: Mapping[str, frozenset[grpc.StatusCode]] = {
    # Aborted: another worker on the same machine has the name.
    "worker": ANSWERS | {Code.ABORTED},
    "reader": frozenset({Code.PERMISSION_DENIED}),
    "wrong": frozenset({Code.UNAUTHENTICATED}),
    "nobody": frozenset({Code.UNAUTHENTICATED}),
}
# Most calls have a valid token, so that the server parses their message.
SENDERS = {"worker": 94, "reader": 2, "wrong": 2, "nobody": 2}


class Sender:
    """Sends AT_ONCE calls at a time and judges the answers."""

    def __init__(self, service: Service, failures: Failures, growth: Growth) -> None:
        self._service = service
        self._failures = failures
        self._growth = growth
        self._known = service.known
        self.answers: Counter[str] = Counter()
        secrets = {"worker": service.worker, "reader": service.reader, "wrong": "guessed"}
        self._metadata: dict[str, tuple[tuple[str, str], ...]] = {
            name: (("authorization", f"Bearer {secret}"),) for name, secret in secrets.items()
        }

    def send(self, count: int, rng: Random) -> None:
        """Send `count` calls, fewer when the server ends."""
        asyncio.run(self._send(count, rng))

    async def _send(self, count: int, rng: Random) -> None:
        source = self._numbered(count, calls(self._known, rng), rng)
        async with grpc.aio.insecure_channel(self._service.fleet) as channel:
            stubs = {method: _stub(channel, method) for method in METHODS}
            await asyncio.gather(*(self._take(source, stubs) for _ in range(AT_ONCE)))

    def _numbered(self, count: int, source: Iterator[Call], rng: Random) -> Iterator[tuple[Call, str]]:
        every = max(count // SAMPLES, 1)
        for number in range(count):
            if number % every == 0:
                self._service.sample(self._growth, number)
            yield next(source), rng.choices(tuple(SENDERS), tuple(SENDERS.values()))[0]
        self._service.sample(self._growth, count)

    async def _take(self, source: Iterator[tuple[Call, str]], stubs: Mapping[str, Any]) -> None:
        for call, sender in source:
            may_wait = sender == "worker" and call.waits
            timeout_s = WAITING_TIMEOUT_S if may_wait else TIMEOUT_S
            code, answer = await _call(
                stubs[call.method], call, metadata=self._metadata.get(sender, ()), timeout=timeout_s
            )
            self._judge(call, sender, code, may_wait)
            if code is Code.OK and call.method == SYNCHRONIZE:
                self._known.learn(call.data, answer)
            if self._service.ended():
                return

    def _judge(self, call: Call, sender: str, code: grpc.StatusCode, may_wait: bool) -> None:
        held_back = may_wait and code is Code.DEADLINE_EXCEEDED
        self.answers["held back" if held_back else code.name] += 1
        if code not in EXPECTED[sender] and not held_back:
            self._failures.note(f"{KIND} {call.method} {sender} {code.name}", call.data)


def is_served(service: Service, batch: int) -> bool:
    """Return whether a valid worker can lease a trial, report it and have that acknowledged.

    Each call needs a `batch` of its own.
    """
    service.offer(0, batch, SPARE)
    metadata = (("authorization", f"Bearer {service.worker}"),)
    with grpc.insecure_channel(service.fleet) as channel:
        fleet = FleetStub(channel)
        try:
            entering = _report(batch, starting=True, slots=1, wait_s=10.0)
            results = results_for(fleet.Synchronize(entering, metadata=metadata, timeout=TIMEOUT_S).lease)
            reporting = _report(batch, results=results)
            answer = fleet.Synchronize(reporting, metadata=metadata, timeout=TIMEOUT_S)
        except grpc.RpcError:
            return False
    return len(results) == 1 and list(answer.acknowledged) == [result.number for result in results]


def _report(batch: int, **more: Any) -> pb.SynchronizeRequest:
    return pb.SynchronizeRequest(
        protocol=PROTOCOL,
        worker_id=f"well-behaved-{batch}",
        session_id=f"well-behaved-session-{batch}",
        state="WORKER_STATE_READY",
        device=device_to_wire(simulated_device(0)),
        **more,
    )


def _stub(channel: grpc.aio.Channel, method: str) -> Any:
    """Return a stub that sends and returns bytes."""
    path = f"/{SERVICE}/{method}"
    return channel.unary_stream(path) if METHODS[method].server_streaming else channel.unary_unary(path)


async def _call(stub: Any, call: Call, **how: Any) -> tuple[grpc.StatusCode, bytes]:
    """Send a call. Return its status, and the bytes of an answer that is one message."""
    try:
        if METHODS[call.method].server_streaming:
            async for _ in stub(call.data, **how):
                pass
            return Code.OK, b""
        return Code.OK, await stub(call.data, **how)
    except grpc.aio.AioRpcError as error:
        return error.code(), b""
