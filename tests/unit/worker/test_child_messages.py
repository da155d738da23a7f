"""Requests and results survive conversion to messages. The agent rejects a broken child's messages."""

from __future__ import annotations

import math

import pytest

from core.measurement import Measurement, Outcome, Resources
from proto import child_pb2 as pb
from proto import convert, fleet_pb2
from tests.devices import DEVICE
from worker.runner import child_messages
from worker.runner.frames import FrameError
from worker.runner.interface import BuildRequest, Calls, Exported, Platforms


def sent(reply: pb.ChildReply) -> pb.ChildReply:
    return child_messages.parse_reply(reply.SerializeToString())


@pytest.mark.parametrize(
    "measurement",
    [
        Measurement(Outcome.OK, (0.1, 0.2), 0.3),
        Measurement(Outcome.WRONG_RESULT, build_s=1.0, error="off by one"),
        Measurement(Outcome.SPILLED, error="too large", resources=Resources(255, 1200)),
    ],
)
def test_a_measurement_survives_its_message(measurement: Measurement) -> None:
    reply = sent(child_messages.measurement_to_wire(measurement))
    assert child_messages.measurement_of(reply) == measurement


OK = fleet_pb2.Outcome.OUTCOME_OK


@pytest.mark.parametrize(
    "reply",
    [
        pb.ChildReply(),
        pb.ChildReply(profile="{}"),
        pb.ChildReply(measurement=fleet_pb2.Measurement(outcome=OK)),
        pb.ChildReply(measurement=fleet_pb2.Measurement(outcome=OK, run_s=[-1.0])),
        pb.ChildReply(measurement=fleet_pb2.Measurement(outcome=OK, run_s=[float("nan")])),
        pb.ChildReply(measurement=fleet_pb2.Measurement(outcome=OK, run_s=[float("inf")])),
        pb.ChildReply(measurement=fleet_pb2.Measurement(outcome=99, run_s=[0.1])),  # type: ignore[arg-type]
        pb.ChildReply(
            measurement=fleet_pb2.Measurement(outcome=OK, run_s=[0.1] * (child_messages.MAX_REPEATS + 1))
        ),
        pb.ChildReply(measurement=fleet_pb2.Measurement(outcome=OK, run_s=[0.1], build_s=float("nan"))),
        pb.ChildReply(measurement=fleet_pb2.Measurement(outcome=OK, run_s=[0.1], build_s=-1.0)),
        pb.ChildReply(
            measurement=fleet_pb2.Measurement(
                outcome=OK, run_s=[0.1], resources=fleet_pb2.Resources(registers=1 << 31)
            )
        ),
    ],
)
def test_an_invalid_measurement_from_a_child_is_rejected(reply: pb.ChildReply) -> None:
    with pytest.raises(FrameError, match="not a measurement"):
        child_messages.measurement_of(sent(reply))


@pytest.mark.parametrize(
    "body",
    [
        b"\xff",
        b"\x0b" * 100_000,  # groups within groups
        b"\x22\xff\xff\xff\xff\x0f",  # a text of 4 GiB
        b"\x1a\x01\xff",  # a text that isn't UTF-8
    ],
)
def test_invalid_reply_bytes_are_rejected(body: bytes) -> None:
    with pytest.raises(FrameError, match="not a reply"):
        child_messages.parse_reply(body)


@pytest.mark.parametrize(
    "calls",
    [Calls(1.0, 1.0, 1), Calls(1.0, 2.0, 0), Calls(1.0, math.inf, 1), Calls(math.nan, 2.0, 1)],
)
def test_impossible_calls_from_a_child_are_rejected(calls: Calls) -> None:
    assert child_messages.calls_of(child_messages.calls_to_wire(Calls(1.0, 2.0, 3))) == Calls(1.0, 2.0, 3)
    with pytest.raises(FrameError, match="not calls"):
        child_messages.calls_of(child_messages.calls_to_wire(calls))


def test_any_error_text_can_be_sent() -> None:
    failed = Measurement(Outcome.RUN_ERROR, error="x" * 100_000 + "\ud800\0")
    error = child_messages.measurement_of(sent(child_messages.measurement_to_wire(failed))).error
    assert 8000 < len(error.encode()) <= convert.MAX_ERROR_CHARS
    assert "\0" not in error


def ready(**wrong: object) -> pb.Ready:
    reply = child_messages.ready_to_wire(DEVICE, ["no user namespaces"], Platforms(("x86_64",), ("no zig",)))
    for name, value in wrong.items():
        if isinstance(value, list):
            getattr(reply.ready.device, name).extend(value)
        else:
            setattr(reply.ready.device, name, value)
    return sent(reply).ready


def test_the_ready_reply_survives_conversion() -> None:
    assert child_messages.device_of(ready()) == DEVICE
    assert child_messages.sandbox_gaps_of(ready()) == ("no user namespaces",)
    assert child_messages.platforms_of(ready()) == Platforms(("x86_64",), ("no zig",))


@pytest.mark.parametrize(
    "wrong",
    [{"name": "x" * 100_000}, {"features": ["avx"] * 100_000}, {"cores": 0}, {"target": "[" * 100_000}],
)
def test_a_device_beyond_the_services_limits_is_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(FrameError, match="the device that it found makes no sense"):
        child_messages.device_of(ready(**wrong))


def test_lists_and_profiles_are_limited() -> None:
    with pytest.raises(FrameError, match="platforms"):
        child_messages.platforms_of(pb.Ready(platforms=["x"] * 1000))
    with pytest.raises(FrameError, match="platforms"):
        child_messages.platforms_of(pb.Ready(platform_problems=["x"] * 1000))
    with pytest.raises(FrameError, match="sandbox gaps"):
        child_messages.sandbox_gaps_of(pb.Ready(sandbox_gaps=["x"] * 1000))
    assert len(child_messages.sandbox_gaps_of(pb.Ready(sandbox_gaps=["x" * 100_000]))[0]) < 10_000
    for text in ("{" + " " * 100_000, "[" * 10_000, "{}"):
        with pytest.raises(FrameError, match="profile"):
            child_messages.profile_of(pb.ChildReply(profile=text))


@pytest.mark.parametrize(
    "built",
    [
        BuildRequest("{}", "module", "trace", (1, 2)),
        BuildRequest("{}", "module", "trace", (), library="/tmp/library"),
        BuildRequest("{}", "module", "trace", (), export=True),
        BuildRequest("{}", "module", "trace", (1,), model_bytes=46_800_000),
    ],
)
def test_a_build_request_survives_its_message(built: BuildRequest) -> None:
    body = child_messages.build_to_wire(3, built).SerializeToString()
    message = pb.CandidateBuild.FromString(body)
    assert (message.number, child_messages.build_from_wire(message)) == (3, built)


@pytest.mark.parametrize("exported", [Exported(bytes(range(256)), 0.5), Measurement(Outcome.BUILD_ERROR)])
def test_an_export_survives_its_message(exported: Exported | Measurement) -> None:
    assert child_messages.export_of(sent(child_messages.export_to_wire(exported))) == exported


@pytest.mark.parametrize("build_s", [-1.0, float("inf"), float("nan")])
def test_an_invalid_export_from_a_child_is_rejected(build_s: float) -> None:
    with pytest.raises(FrameError, match="not a library"):
        child_messages.export_of(pb.ChildReply(exported=pb.ExportedCandidate(data=b"", build_s=build_s)))
    with pytest.raises(FrameError, match="not a measurement"):
        child_messages.export_of(pb.ChildReply())


def test_candidate_zero_is_a_valid_number() -> None:
    assert sent(pb.ChildReply(begun=0)).WhichOneof("reply") == "begun"
    assert (
        pb.ChildRequest.FromString(pb.ChildRequest(export=0).SerializeToString()).WhichOneof("work")
        == "export"
    )
