"""What travels between the agent and its child: JSON objects, each behind its length.

A frame is the length of its body in bytes (4 bytes, big-endian), then the body. JSON rather than pickle:
a child that has run a broken kernel may send anything, and reading it must stay harmless.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from dataclasses import asdict
from typing import Any, BinaryIO

from core.measurement import Measurement, Outcome
from core.profile import Profile
from worker.runner.interface import BuildRequest, Exported, Machines

# A workload's text at its limit, its quotes escaped.
MAX_BODY_BYTES = 128 << 20

Message = dict[str, Any]

_LENGTH = struct.Struct(">I")


class FrameError(ValueError):
    """The bytes are no frame, or the frame is not what was expected."""


def encode(message: Message) -> bytes:
    """Raises FrameError when the message is too large."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_BODY_BYTES:
        raise FrameError(f"a message of {len(body)} bytes is larger than the limit of {MAX_BODY_BYTES}")
    return _LENGTH.pack(len(body)) + body


def read(stream: BinaryIO) -> Message | None:
    """The next message; None at the end of the stream. Blocks. Raises FrameError."""
    head = stream.read(_LENGTH.size)
    if not head:
        return None
    if len(head) < _LENGTH.size:
        raise FrameError("the stream ended within a frame")
    length = _body_length(head)
    body = stream.read(length)
    if len(body) < length:
        raise FrameError("the stream ended within a frame")
    return _decode(body)


async def receive(stream: asyncio.StreamReader) -> Message:
    """The next message. Raises FrameError, or IncompleteReadError at the end of the stream."""
    head = await stream.readexactly(_LENGTH.size)
    return _decode(await stream.readexactly(_body_length(head)))


def from_build_request(subject: BuildRequest) -> Message:
    return asdict(subject)


def to_build_request(message: Message) -> BuildRequest:
    """Raises KeyError when something is missing: only the agent, which we trust, sends subjects."""
    fields = {name: message[name] for name in ("target", "module_json", "trace", "library", "export")}
    return BuildRequest(constants=tuple(message["constants"]), **fields)


def from_measurement(measurement: Measurement) -> Message:
    return {
        "outcome": measurement.outcome.value,
        "run_secs": measurement.run_secs,
        "build_secs": measurement.build_secs,
        "error": measurement.error,
    }


def to_measurement(message: object) -> Measurement:
    """Raises FrameError when the message is not a measurement."""
    try:
        fields = dict(message)  # type: ignore[call-overload]
        return Measurement(
            Outcome(fields["outcome"]),
            tuple(float(secs) for secs in fields["run_secs"]),
            float(fields["build_secs"]),
            str(fields["error"]),
        )
    except (TypeError, ValueError, KeyError) as error:
        raise FrameError(f"not a measurement: {error}") from error


def from_export(exported: Exported | Measurement) -> Message:
    if isinstance(exported, Measurement):
        return {"measurement": from_measurement(exported)}
    data = base64.b64encode(exported.data).decode()
    return {"library": data, "build_secs": exported.build_secs}


def to_export(message: Message) -> Exported | Measurement:
    """Raises FrameError when the message is neither a library nor a measurement."""
    if "library" not in message:
        return to_measurement(message.get("measurement"))
    try:
        data = base64.b64decode(message["library"], validate=True)
        return Exported(data, float(message["build_secs"]))
    except (TypeError, ValueError, KeyError) as error:
        raise FrameError(f"not a library: {error}") from error


def from_machines(machines: Machines) -> Message:
    return asdict(machines)


def to_machines(message: Message) -> Machines:
    """Raises FrameError when the message doesn't tell of machines."""
    try:
        return Machines(tuple(map(str, message["names"])), tuple(map(str, message["problems"])))
    except (TypeError, KeyError) as error:
        raise FrameError(f"not a list of machines: {error}") from error


def to_profile(value: object) -> Profile:
    """Raises FrameError."""
    try:
        return Profile.from_json(str(value))
    except ValueError as error:
        raise FrameError(f"not a profile: {error}") from error


def to_number(value: object) -> int:
    """A count, or a candidate's number. Raises FrameError for what is neither."""
    if not isinstance(value, int) or value < 0:
        raise FrameError(f"{str(value)[:200]!r} is not a number")
    return value


def to_numbers(value: object) -> frozenset[int]:
    """Raises FrameError."""
    if not isinstance(value, list):
        raise FrameError(f"{str(value)[:200]!r} is no list of numbers")
    return frozenset(map(to_number, value))


def _body_length(head: bytes) -> int:
    length: int = _LENGTH.unpack(head)[0]
    if length > MAX_BODY_BYTES:
        raise FrameError(f"a frame of {length} bytes is larger than the limit of {MAX_BODY_BYTES}")
    return length


def _decode(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a frame is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise FrameError(f"a frame holds a {type(message).__name__}, not an object")
    return message
