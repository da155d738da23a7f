"""Conversion of requests and results to the messages between the agent and its child, and back.

The child trusts the agent. The agent doesn't trust the child. Decoding raises FrameError for anything that
the agent doesn't expect, and for more than the service takes, because the agent would send that again and
again.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping
from dataclasses import asdict

from core.device import Device
from core.measurement import Measurement, Outcome, Resources
from core.profile import Profile
from core.worker import MAX_HEALTH_ERROR_CHARS
from proto.convert import device_from_wire, device_to_wire
from proto.messages import MAX_LIBRARY_BYTES, MAX_PLATFORMS, MAX_PROFILE_CHARS
from worker.runner.frames import MAX_REPLY_BYTES, FrameError, Message
from worker.runner.interface import BuildRequest, Exported, Platforms

# Ten times as many as the runner makes; a call that carries MAX_RESULTS measurements stays small.
MAX_REPEATS = 1000
MAX_TEXT_CHARS = 8192
MAX_SANDBOX_GAPS = 16
# A library in base64, and the rest of its reply.
MAX_EXPORT_REPLY_BYTES = MAX_LIBRARY_BYTES * 4 // 3 + MAX_REPLY_BYTES


def encode_build_request(request: BuildRequest) -> Message:
    return asdict(request)


def decode_build_request(message: Message) -> BuildRequest:
    """Raises KeyError when a field is missing."""
    names = ("target", "module_json", "trace", "library", "export", "model_bytes")
    fields = {name: message[name] for name in names}
    return BuildRequest(constants=tuple(message["constants"]), **fields)


def encode_measurement(measurement: Measurement) -> Message:
    return {
        "outcome": measurement.outcome.value,
        "run_s": measurement.run_s,
        "build_s": measurement.build_s,
        "error": measurement.error,
        "resources": None if measurement.resources is None else asdict(measurement.resources),
    }


def decode_measurement(message: object) -> Measurement:
    if not isinstance(message, Mapping):
        raise FrameError("not a measurement")
    try:
        run_s = message["run_s"]
        if len(run_s) > MAX_REPEATS:
            raise ValueError(f"it has {len(run_s)} repeats")
        outcome, build_s = Outcome(message["outcome"]), _seconds(message["build_s"])
        error, found = decode_text(message["error"]), message["resources"]
        resources = None
        if found is not None:
            resources = Resources(decode_number(found["registers"]), decode_number(found["spilled_bytes"]))
        return Measurement(outcome, tuple(map(float, run_s)), build_s, error, resources)
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise FrameError(f"not a measurement: {error}") from error


def encode_export(exported: Exported | Measurement) -> Message:
    if isinstance(exported, Measurement):
        return {"measurement": encode_measurement(exported)}
    data = base64.b64encode(exported.data).decode()
    return {"library": data, "build_s": exported.build_s}


def decode_export(message: Message) -> Exported | Measurement:
    if "library" not in message:
        return decode_measurement(message.get("measurement"))
    try:
        data = base64.b64decode(message["library"], validate=True)
        return Exported(data, _seconds(message["build_s"]))
    except (TypeError, ValueError, KeyError, OverflowError) as error:
        raise FrameError(f"not a library: {error}") from error


def encode_platforms(platforms: Platforms) -> Message:
    return asdict(platforms)


def decode_platforms(message: Message) -> Platforms:
    try:
        names, problems = message["names"], message["problems"]
    except (TypeError, KeyError) as error:
        raise FrameError(f"not a list of platforms: {error}") from error
    if any(isinstance(one, (list, tuple)) and len(one) > MAX_PLATFORMS for one in (names, problems)):
        raise FrameError(f"not a list of platforms: it has more than {MAX_PLATFORMS}")
    return Platforms(_texts(names, "list of platforms"), _texts(problems, "list of platforms"))


def decode_sandbox_gaps(value: object) -> tuple[str, ...]:
    """Return the sentences about what the sandbox lacks."""
    gaps = _texts(value, "list of sandbox gaps")
    if len(gaps) > MAX_SANDBOX_GAPS:
        raise FrameError(f"not a list of sandbox gaps: it has {len(gaps)}")
    return gaps


def decode_device(text: object) -> Device:
    """Return a device that the service takes."""
    try:
        return device_from_wire(device_to_wire(Device.from_json(text)))  # type: ignore[arg-type]
    except (ValueError, TypeError, RecursionError) as error:
        raise FrameError(f"the device that it found makes no sense: {_shortened(str(error))}") from error


def decode_profile(text: object) -> Profile:
    if not isinstance(text, str) or len(text) > MAX_PROFILE_CHARS:
        raise FrameError("not a profile")
    try:
        return Profile.from_json(text)
    except (ValueError, OverflowError) as error:
        raise FrameError(f"not a profile: {_shortened(str(error))}") from error


def decode_number(value: object) -> int:
    """Return a count, or the number of a candidate."""
    if not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise FrameError("a child's number is not a number")
    return value


def decode_numbers(value: object) -> frozenset[int]:
    if not isinstance(value, list):
        raise FrameError("a child's numbers are no list of numbers")
    return frozenset(map(decode_number, value))


def decode_text(value: object) -> str:
    """Return a text that can be stored and shown: its end, which names the cause, if it is too long."""
    if not isinstance(value, str):
        raise FrameError("a child's text is not a text")
    return value[-MAX_TEXT_CHARS:].encode(errors="replace").decode()


def _texts(value: object, what: str) -> tuple[str, ...]:
    if not isinstance(value, (list, tuple)) or not all(isinstance(one, str) for one in value):
        raise FrameError(f"not a {what}")
    return tuple(_shortened(one) for one in value)


def _shortened(text: str) -> str:
    return decode_text(text)[:MAX_HEALTH_ERROR_CHARS]


def _seconds(value: object) -> float:
    seconds = float(value)  # type: ignore[arg-type]
    if not 0.0 <= seconds < math.inf:
        raise ValueError(f"{seconds} are no seconds")
    return seconds
