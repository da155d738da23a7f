"""Requests and results survive as messages; what a broken child sends is refused."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from core.measurement import Measurement, Outcome, Resources
from tests.devices import DEVICE
from worker.runner import child_messages, frames
from worker.runner.frames import FrameError
from worker.runner.interface import BuildRequest, Exported, Platforms


@pytest.mark.parametrize(
    "measurement",
    [
        Measurement(Outcome.OK, (0.1, 0.2), 0.3),
        Measurement(Outcome.WRONG_RESULT, build_s=1.0, error="off by one"),
        Measurement(Outcome.SPILLED, error="too large", resources=Resources(255, 1200)),
    ],
)
def test_a_measurement_survives_its_message(measurement: Measurement) -> None:
    stream = io.BytesIO(frames.encode({"measurement": child_messages.encode_measurement(measurement)}))
    message = frames.read(stream)
    assert message is not None
    assert child_messages.decode_measurement(message["measurement"]) == measurement


GOOD = child_messages.encode_measurement(Measurement(Outcome.OK, (0.1,)))


@pytest.mark.parametrize(
    "message",
    [
        None,
        7,
        "text",
        {},
        GOOD | {"run_s": [-1.0]},
        GOOD | {"run_s": [float("nan")]},
        GOOD | {"run_s": 3},
        GOOD | {"run_s": ["fast"]},
        GOOD | {"build_s": None},
        GOOD | {"outcome": "run_error"},
        GOOD | {"run_s": [10**400]},
        GOOD | {"run_s": [0.1] * (child_messages.MAX_REPEATS + 1)},
        GOOD | {"build_s": float("nan")},
        GOOD | {"build_s": -1.0},
        GOOD | {"error": ["a text"]},
        GOOD | {"resources": {"registers": 1 << 40, "spilled_bytes": 0}},
    ],
)
def test_nonsense_from_a_child_is_no_measurement(message: object) -> None:
    with pytest.raises(FrameError, match="not a measurement"):
        child_messages.decode_measurement(message)


def test_the_text_of_a_failure_can_be_sent_whatever_is_in_it() -> None:
    failed = child_messages.encode_measurement(Measurement(Outcome.RUN_ERROR))
    error = child_messages.decode_measurement(failed | {"error": "x" * 100_000 + "\ud800"}).error
    assert len(error.encode()) == child_messages.MAX_TEXT_CHARS


def test_what_is_too_much_for_the_service_is_no_device_and_no_list() -> None:
    facts = json.loads(DEVICE.to_json())
    assert child_messages.decode_device(json.dumps(facts)) == DEVICE
    for wrong in (
        {"name": "x" * 100_000},
        {"features": ["avx"] * 100_000},
        {"cores": 10**400},
        {"mcpu": "\ud800"},
        {"gpu": {"max_threads": 10**400}},
    ):
        with pytest.raises(FrameError, match="the device that it found makes no sense"):
            child_messages.decode_device(json.dumps(facts | wrong))
    for text in ("[" * 100_000, 7, None):
        with pytest.raises(FrameError, match="makes no sense"):
            child_messages.decode_device(text)
    with pytest.raises(FrameError, match="platforms"):
        child_messages.decode_platforms({"names": ["x"] * 1000, "problems": []})
    for gaps in (["x"] * 1000, "text", [7]):
        with pytest.raises(FrameError, match="sandbox gaps"):
            child_messages.decode_sandbox_gaps(gaps)
    with pytest.raises(FrameError, match="profile"):
        child_messages.decode_profile("{" + " " * 100_000)


def test_nonsense_from_a_child_is_no_list_of_numbers() -> None:
    assert child_messages.decode_numbers([0, 7]) == {0, 7}
    message: Any
    for message in (None, 7, "text", {}, ["a"], [-1], [1.5], [[]]):
        with pytest.raises(FrameError, match="number"):
            child_messages.decode_numbers(message)


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
    message = frames.read(
        io.BytesIO(frames.encode(child_messages.encode_build_request(built) | {"number": 3}))
    )
    assert message is not None
    assert child_messages.decode_build_request(message) == built


@pytest.mark.parametrize("exported", [Exported(bytes(range(256)), 0.5), Measurement(Outcome.BUILD_ERROR)])
def test_an_export_survives_its_message(exported: Exported | Measurement) -> None:
    message = frames.read(io.BytesIO(frames.encode(child_messages.encode_export(exported))))
    assert message is not None
    assert child_messages.decode_export(message) == exported


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"library": 7, "build_s": 1.0},
        {"library": "no base64!", "build_s": 1.0},
        {"library": ""},
        {"library": "", "build_s": []},
    ],
)
def test_nonsense_from_a_child_is_no_export(message: frames.Message) -> None:
    with pytest.raises(FrameError, match="not a"):
        child_messages.decode_export(message)


def test_machines_survive_their_message_and_nonsense_does_not() -> None:
    platforms = Platforms(("x86_64",), ("no linker for aarch64",))
    assert child_messages.decode_platforms(child_messages.encode_platforms(platforms)) == platforms
    message: Any
    for message in ({}, {"names": 7, "problems": []}, []):
        with pytest.raises(FrameError, match="not a list of platforms"):
            child_messages.decode_platforms(message)
