"""Generate messages to the Fleet service: valid ones, and ones with values that no worker would send."""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from core.device import Device
from proto import fleet_pb2 as pb
from proto.convert import device_to_wire
from proto.messages import PROTOCOL
from tests.fuzz.mutations import FLOATS, NUMBERS, mutated

_FLEET = pb.DESCRIPTOR.services_by_name["Fleet"]
SERVICE = _FLEET.full_name
METHODS = {method.name: method for method in _FLEET.methods}
SYNCHRONIZE, GET_WORKLOAD, GET_BLOB = "Synchronize", "GetWorkload", "GetBlob"
PUT_LIBRARY, PUT_OUTPUTS = "PutLibrary", "PutOutputs"
WORKERS, SESSIONS = 20, 40
# The fraction of a message's fields to change. A message has a few dozen, and most should be understood.
SHARES = (0.01, 0.03, 0.1, 0.3)
TEXTS = (
    *("", "a", "board", "a b", "\0", "a\nb", "€" * 200, "\U0001f600" * 100, "x" * 129, "x" * 9000),
    *('{"kind":"llvm"}', '{"kind":', "[" * 5000, '{"a":NaN}', "9" * 5000, "../../etc/passwd", "' OR 1=1 --"),
)
# The part that the server reads: the headers of a tar and of a shared library for x86-64.
LIBRARY = bytes(512) + b"\x7fELF\x02\x01".ljust(16, b"\0") + struct.pack("<HH", 3, 62) + bytes(64)
# An .npz file without arrays.
OUTPUTS = b"PK\x05\x06" + bytes(18)
_MASKS = {FieldDescriptor.TYPE_UINT32: 2**32 - 1, FieldDescriptor.TYPE_UINT64: 2**64 - 1}


@dataclass(frozen=True)
class HeldLease:
    """A lease that a worker's session was given."""

    worker: str
    session: str
    id: pb.LeaseId
    trials: tuple[int, ...]


@dataclass
class ServiceState:
    """Ids that the service knows, so that some messages get further than NOT_FOUND."""

    devices: Sequence[Device]
    workload: str
    blob: str
    leases: deque[HeldLease] = field(default_factory=lambda: deque(maxlen=20))

    def learn(self, sent: bytes, answer: bytes) -> None:
        """Remember the lease in an answer to a worker."""
        request = pb.SynchronizeRequest.FromString(sent)
        lease = pb.SynchronizeResponse.FromString(answer).lease
        if lease.candidates:
            trials = tuple(candidate.trial_id for candidate in lease.candidates)
            self.leases.append(HeldLease(request.worker_id, request.session_id, lease.id, trials))


@dataclass(frozen=True)
class Call:
    """The bytes of a message to one of the Fleet's methods."""

    method: str
    data: bytes

    @property
    def waits(self) -> bool:
        """Whether the server may wait for work before it answers."""
        if self.method != SYNCHRONIZE:
            return False
        try:
            return pb.SynchronizeRequest.FromString(self.data).wait_s > 0.0
        except DecodeError:
            return False


def calls(known: ServiceState, rng: Random) -> Iterator[Call]:
    """Yield calls without end: half are valid messages with some values changed, half have changed bytes."""
    while True:
        method = SYNCHRONIZE if rng.random() < 0.8 else rng.choice(list(METHODS))
        message = valid(method, known, rng)
        if rng.random() < 0.5:
            vary(message, rng, rng.choice(SHARES))
            yield Call(method, message.SerializeToString())
        else:
            other = valid(rng.choice((method, SYNCHRONIZE)), known, rng)
            yield Call(method, mutated(message.SerializeToString(), other.SerializeToString(), rng))


def valid(method: str, known: ServiceState, rng: Random) -> Message:
    """Return a message that a worker could send."""
    if method == SYNCHRONIZE:
        return _call_of_a_worker(known, rng)
    if method == GET_WORKLOAD:
        return pb.WorkloadRequest(workload_hash=rng.choice((known.workload, "unheard-of")))
    if method == GET_BLOB:
        return pb.BlobRequest(sha256=rng.choice((known.blob, "0" * 64)))
    if method == PUT_LIBRARY:
        return _library(known, rng)
    if method == PUT_OUTPUTS:
        return _outputs(known, rng)
    raise AssertionError(f"{method} has no message yet: write one")


def _call_of_a_worker(known: ServiceState, rng: Random) -> pb.SynchronizeRequest:
    worker, session = f"fuzzed-{rng.randrange(WORKERS)}", f"session-{rng.randrange(SESSIONS)}"
    held = rng.choice(known.leases) if known.leases and rng.random() < 0.5 else None
    if held is None:
        return _report(worker, session, known, rng)
    message = _report(held.worker, held.session, known, rng)
    message.held.CopyFrom(held.id)
    message.results.extend(_results(held, rng))
    return message


def _library(known: ServiceState, rng: Random) -> pb.Library:
    held = _held(known, rng)
    sha = hashlib.sha256(LIBRARY).hexdigest()
    trial = rng.choice(held.trials)
    return pb.Library(session_id=held.session, lease=held.id, trial_id=trial, sha256=sha, data=LIBRARY)


def _outputs(known: ServiceState, rng: Random) -> pb.Outputs:
    held = _held(known, rng)
    sha, run = hashlib.sha256(OUTPUTS).hexdigest(), rng.choice((1, 99))
    return pb.Outputs(session_id=held.session, lease=held.id, module_run_id=run, sha256=sha, data=OUTPUTS)


def _held(known: ServiceState, rng: Random) -> HeldLease:
    if known.leases:
        return rng.choice(known.leases)
    return HeldLease("w", "session-1", pb.LeaseId(id="none"), (1,))


def _report(worker: str, session: str, known: ServiceState, rng: Random) -> pb.SynchronizeRequest:
    state = rng.choice(("PROBING", "READY", "READY", "BUSY", "DRAINING"))
    builds = rng.random() < 0.3
    return pb.SynchronizeRequest(
        protocol=PROTOCOL,
        worker_id=worker,
        session_id=session,
        starting=rng.random() < 0.3,
        state=f"WORKER_STATE_{state}",
        device=None if state == "PROBING" else device_to_wire(rng.choice(known.devices)),
        slots=rng.choice((0, 1, 16)),
        vitals=pb.Vitals(tunefarm_version="1", load=0.5, temperature_c=50.0, memory_free_bytes=1 << 30),
        role="WORKER_ROLE_BUILD" if builds else "WORKER_ROLE_MEASURE",
        builds_for=["x86_64", "aarch64"] if builds else [],
        calibrated=rng.random() < 0.3,
    )


def _results(held: HeldLease, rng: Random) -> Iterator[pb.Result]:
    for number, trial in enumerate(held.trials[: rng.choice((0, 1, 3, 16))], 1):
        result = pb.Result(number=number, lease=held.id, trial_id=trial)
        if rng.random() < 0.3:
            result.built.CopyFrom(pb.Built(sha256=hashlib.sha256(LIBRARY).hexdigest(), build_s=0.1))
        else:
            went_well = pb.Measurement(outcome="OUTCOME_OK", run_s=[1e-3, 2e-3], build_s=0.1)
            result.measurement.CopyFrom(went_well)
        yield result


def vary(message: Message, rng: Random, share: float) -> None:
    """Change each field of the message, at any depth, with probability `share`."""
    for each in message.DESCRIPTOR.fields:
        if rng.random() < share:
            _set(message, each, rng)
        elif each.type == FieldDescriptor.TYPE_MESSAGE:
            for part in _parts(message, each):
                vary(part, rng, share)


def _parts(message: Message, of: Any) -> list[Message]:
    if of.is_repeated:
        return list(getattr(message, of.name))
    return [getattr(message, of.name)] if message.HasField(of.name) else []


def _set(message: Message, which: Any, rng: Random) -> None:
    message.ClearField(which.name)
    count = rng.choice((0, 1, 3, 40)) if which.is_repeated else 1
    if which.type == FieldDescriptor.TYPE_MESSAGE:
        for _ in range(count):
            part = getattr(message, which.name)
            part = part.add() if which.is_repeated else part
            part.SetInParent()
            vary(part, rng, 0.6)
    elif which.is_repeated:
        getattr(message, which.name).extend(_scalar(which, rng) for _ in range(count))
    else:
        setattr(message, which.name, _scalar(which, rng))


def _scalar(of: Any, rng: Random) -> Any:
    if of.type in _MASKS:
        return rng.choice(NUMBERS) & _MASKS[of.type]
    if of.type == FieldDescriptor.TYPE_DOUBLE:
        return rng.choice(FLOATS)
    if of.type == FieldDescriptor.TYPE_BOOL:
        return rng.random() < 0.5
    if of.type == FieldDescriptor.TYPE_ENUM:
        return rng.choice((*range(10), 2**31 - 1, -1, -(2**31)))
    text = rng.choice(TEXTS)
    return text.encode() if of.type == FieldDescriptor.TYPE_BYTES else text
