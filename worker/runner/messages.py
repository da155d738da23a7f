"""Conversion of requests and results to the messages between the agent and its child, and back.

The child trusts the agent. The agent doesn't trust the child: what it decodes raises FrameError when it isn't
what the agent expects.
"""

from __future__ import annotations

import base64
from dataclasses import asdict

from core.device import Device
from core.measurement import Measurement, Outcome
from core.profile import Profile
from worker.runner.interface import BuildRequest, Exported, Machines
from worker.sandbox.frames import FrameError, Message


def encode_build_request(request: BuildRequest) -> Message:
    return asdict(request)


def decode_build_request(message: Message) -> BuildRequest:
    """Raises KeyError when a field is missing."""
    fields = {name: message[name] for name in ("target", "module_json", "trace", "library", "export")}
    return BuildRequest(constants=tuple(message["constants"]), **fields)


def encode_measurement(measurement: Measurement) -> Message:
    return {
        "outcome": measurement.outcome.value,
        "run_secs": measurement.run_secs,
        "build_secs": measurement.build_secs,
        "error": measurement.error,
    }


def decode_measurement(message: object) -> Measurement:
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


def encode_export(exported: Exported | Measurement) -> Message:
    if isinstance(exported, Measurement):
        return {"measurement": encode_measurement(exported)}
    data = base64.b64encode(exported.data).decode()
    return {"library": data, "build_secs": exported.build_secs}


def decode_export(message: Message) -> Exported | Measurement:
    if "library" not in message:
        return decode_measurement(message.get("measurement"))
    try:
        data = base64.b64decode(message["library"], validate=True)
        return Exported(data, float(message["build_secs"]))
    except (TypeError, ValueError, KeyError) as error:
        raise FrameError(f"not a library: {error}") from error


def encode_machines(machines: Machines) -> Message:
    return asdict(machines)


def decode_machines(message: Message) -> Machines:
    try:
        return Machines(tuple(map(str, message["names"])), tuple(map(str, message["problems"])))
    except (TypeError, KeyError) as error:
        raise FrameError(f"not a list of machines: {error}") from error


def decode_device(text: object) -> Device:
    try:
        return Device.from_json(text)  # type: ignore[arg-type]
    except (ValueError, TypeError) as error:
        raise FrameError(f"the device that it found makes no sense: {error}") from error


def decode_profile(text: object) -> Profile:
    try:
        return Profile.from_json(str(text))
    except ValueError as error:
        raise FrameError(f"not a profile: {error}") from error


def decode_number(value: object) -> int:
    """Return a count, or the number of a candidate."""
    if not isinstance(value, int) or value < 0:
        raise FrameError(f"{str(value)[:200]!r} is not a number")
    return value


def decode_numbers(value: object) -> frozenset[int]:
    if not isinstance(value, list):
        raise FrameError(f"{str(value)[:200]!r} is no list of numbers")
    return frozenset(map(decode_number, value))
