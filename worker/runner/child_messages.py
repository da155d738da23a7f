"""Conversion between the values of a runner and the messages of `proto/child.proto`.

The child trusts the agent. The agent doesn't trust the child. Functions that read a reply raise FrameError
for unexpected content, and for more than the service accepts, because the agent would send that again and
again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from google.protobuf.message import DecodeError

from core.device import Device
from core.measurement import Measurement
from core.profile import Profile
from core.worker import MAX_HEALTH_ERROR_CHARS
from proto import child_pb2 as pb
from proto import convert
from proto.convert import WireError
from proto.messages import MAX_LIBRARY_BYTES, MAX_OUTPUTS_BYTES, MAX_PLATFORMS
from worker.runner.frames import MAX_REPLY_BYTES, FrameError
from worker.runner.interface import BuildRequest, Calls, Exported, Inferred, Platforms

# Ten times as many as the runner makes. A call with MAX_RESULTS measurements stays small.
MAX_REPEATS = 1000
MAX_SANDBOX_GAPS = 16
# The largest reply: a library, and a megabyte for the rest.
MAX_EXPORT_REPLY_BYTES = MAX_LIBRARY_BYTES + MAX_REPLY_BYTES
MAX_OUTPUTS_REPLY_BYTES = MAX_OUTPUTS_BYTES + MAX_REPLY_BYTES


def build_to_wire(number: int, request: BuildRequest) -> pb.CandidateBuild:
    return pb.CandidateBuild(
        number=number,
        target=request.target,
        module_json=request.module_json,
        trace=request.trace,
        constants=request.constants,
        library=request.library,
        export=request.export,
        model_bytes=request.model_bytes,
    )


def build_from_wire(message: pb.CandidateBuild) -> BuildRequest:
    return BuildRequest(
        target=message.target,
        module_json=message.module_json,
        trace=message.trace,
        constants=tuple(message.constants),
        library=message.library if message.HasField("library") else None,
        export=message.export,
        model_bytes=message.model_bytes,
    )


def ready_to_wire(device: Device, sandbox_gaps: Sequence[str], platforms: Platforms) -> pb.ChildReply:
    ready = pb.Ready(
        device=convert.device_to_wire(device),
        sandbox_gaps=map(convert.clean_text, sandbox_gaps),
        platforms=platforms.names,
        platform_problems=map(convert.clean_text, platforms.problems),
    )
    return pb.ChildReply(ready=ready)


def measurement_to_wire(measurement: Measurement) -> pb.ChildReply:
    return pb.ChildReply(measurement=convert.measurement_to_wire(measurement))


def export_to_wire(exported: Exported | Measurement) -> pb.ChildReply:
    if isinstance(exported, Measurement):
        return measurement_to_wire(exported)
    library = pb.ExportedCandidate(data=exported.data, build_s=exported.build_s)
    return pb.ChildReply(exported=library)


def inferred_to_wire(inferred: Inferred | Measurement) -> pb.ChildReply:
    if isinstance(inferred, Measurement):
        return measurement_to_wire(inferred)
    return pb.ChildReply(inferred=pb.Inferred(data=inferred.data, run_s=inferred.run_s))


def calls_to_wire(calls: Calls | Measurement) -> pb.ChildReply:
    if isinstance(calls, Measurement):
        return measurement_to_wire(calls)
    return pb.ChildReply(calls=pb.Calls(began_s=calls.began_s, ended_s=calls.ended_s, count=calls.count))


def parse_reply(body: bytes) -> pb.ChildReply:
    try:
        return pb.ChildReply.FromString(body)
    except DecodeError as error:
        raise FrameError(f"not a reply: {error}") from error


def measurement_of(reply: pb.ChildReply) -> Measurement:
    _expect(reply, "measurement")
    try:
        return convert.strict_measurement_from_wire(reply.measurement, MAX_REPEATS)
    except WireError as error:
        raise FrameError(f"not a measurement: {error}") from error


def export_of(reply: pb.ChildReply) -> Exported | Measurement:
    if reply.WhichOneof("reply") != "exported":
        return measurement_of(reply)
    build_s = reply.exported.build_s
    if not 0.0 <= build_s < math.inf:
        raise FrameError(f"not a library: it can't be built in {build_s} s")
    return Exported(reply.exported.data, build_s)


def inferred_of(reply: pb.ChildReply) -> Inferred | Measurement:
    if reply.WhichOneof("reply") != "inferred":
        return measurement_of(reply)
    run_s = reply.inferred.run_s
    if not 0.0 < run_s < math.inf:
        raise FrameError(f"not outputs: no call takes {run_s} s")
    return Inferred(reply.inferred.data, run_s)


def calls_of(reply: pb.ChildReply) -> Calls | Measurement:
    if reply.WhichOneof("reply") != "calls":
        return measurement_of(reply)
    calls = Calls(reply.calls.began_s, reply.calls.ended_s, reply.calls.count)
    if not (0.0 < calls.began_s < calls.ended_s < math.inf and calls.count):
        raise FrameError(f"not calls: {calls}")
    return calls


def profile_of(reply: pb.ChildReply) -> Profile:
    _expect(reply, "profile")
    try:
        return convert.profile_from_wire(reply.profile)
    except WireError as error:
        raise FrameError(_shortened(str(error))) from error


def device_of(ready: pb.Ready) -> Device:
    try:
        return convert.device_from_wire(ready.device)
    except WireError as error:
        raise FrameError(f"the device that it found makes no sense: {_shortened(str(error))}") from error


def sandbox_gaps_of(ready: pb.Ready) -> tuple[str, ...]:
    """Return the sandbox's gaps, one sentence each."""
    if len(ready.sandbox_gaps) > MAX_SANDBOX_GAPS:
        raise FrameError(f"{len(ready.sandbox_gaps)} sandbox gaps are more than {MAX_SANDBOX_GAPS}")
    return tuple(map(_shortened, ready.sandbox_gaps))


def platforms_of(ready: pb.Ready) -> Platforms:
    names, problems = ready.platforms, ready.platform_problems
    if max(len(names), len(problems)) > MAX_PLATFORMS:
        raise FrameError(f"more than {MAX_PLATFORMS} platforms")
    return Platforms(tuple(map(_shortened, names)), tuple(map(_shortened, problems)))


def _expect(reply: pb.ChildReply, kind: str) -> None:
    found = reply.WhichOneof("reply")
    if found != kind:
        raise FrameError(f"not a {kind}: a reply of the kind {found}")


def _shortened(text: str) -> str:
    return convert.clean_text(text)[:MAX_HEALTH_ERROR_CHARS]
