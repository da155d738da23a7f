"""Requests and results survive as messages; what a broken child sends is refused."""

from __future__ import annotations

import io
from typing import Any

import pytest

from core.measurement import Measurement, Outcome
from worker.runner import messages
from worker.runner.interface import BuildRequest, Exported, Machines
from worker.sandbox import frames
from worker.sandbox.frames import FrameError


@pytest.mark.parametrize(
    "measurement",
    [
        Measurement(Outcome.OK, (0.1, 0.2), 0.3),
        Measurement(Outcome.WRONG_RESULT, build_secs=1.0, error="off by one"),
    ],
)
def test_a_measurement_survives_its_message(measurement: Measurement) -> None:
    stream = io.BytesIO(frames.encode({"measurement": messages.encode_measurement(measurement)}))
    message = frames.read(stream)
    assert message is not None
    assert messages.decode_measurement(message["measurement"]) == measurement


GOOD = messages.encode_measurement(Measurement(Outcome.OK, (0.1,)))


@pytest.mark.parametrize(
    "message",
    [
        None,
        7,
        "text",
        {},
        GOOD | {"run_secs": [-1.0]},
        GOOD | {"run_secs": [float("nan")]},
        GOOD | {"run_secs": 3},
        GOOD | {"run_secs": ["fast"]},
        GOOD | {"build_secs": None},
        GOOD | {"outcome": "run_error"},
    ],
)
def test_nonsense_from_a_child_is_no_measurement(message: object) -> None:
    with pytest.raises(FrameError, match="not a measurement"):
        messages.decode_measurement(message)


def test_nonsense_from_a_child_is_no_list_of_numbers() -> None:
    assert messages.decode_numbers([0, 7]) == {0, 7}
    message: Any
    for message in (None, 7, "text", {}, ["a"], [-1], [1.5], [[]]):
        with pytest.raises(FrameError, match="number"):
            messages.decode_numbers(message)


@pytest.mark.parametrize(
    "built",
    [
        BuildRequest("{}", "module", "trace", (1, 2)),
        BuildRequest("{}", "module", "trace", (), library="/tmp/library"),
        BuildRequest("{}", "module", "trace", (), export=True),
    ],
)
def test_a_build_request_survives_its_message(built: BuildRequest) -> None:
    message = frames.read(io.BytesIO(frames.encode(messages.encode_build_request(built) | {"number": 3})))
    assert message is not None
    assert messages.decode_build_request(message) == built


@pytest.mark.parametrize("exported", [Exported(bytes(range(256)), 0.5), Measurement(Outcome.BUILD_ERROR)])
def test_an_export_survives_its_message(exported: Exported | Measurement) -> None:
    message = frames.read(io.BytesIO(frames.encode(messages.encode_export(exported))))
    assert message is not None
    assert messages.decode_export(message) == exported


@pytest.mark.parametrize(
    "message",
    [
        {},
        {"library": 7, "build_secs": 1.0},
        {"library": "no base64!", "build_secs": 1.0},
        {"library": ""},
        {"library": "", "build_secs": []},
    ],
)
def test_nonsense_from_a_child_is_no_export(message: frames.Message) -> None:
    with pytest.raises(FrameError, match="not a"):
        messages.decode_export(message)


def test_machines_survive_their_message_and_nonsense_does_not() -> None:
    machines = Machines(("x86_64",), ("no linker for aarch64",))
    assert messages.decode_machines(messages.encode_machines(machines)) == machines
    message: Any
    for message in ({}, {"names": 7, "problems": []}, []):
        with pytest.raises(FrameError, match="not a list of machines"):
            messages.decode_machines(message)
