from __future__ import annotations

import asyncio
import io

import pytest

from core.measurement import Measurement, Outcome
from worker.runner.interface import BuildRequest, Exported, Machines
from worker.sandbox import frames
from worker.sandbox.frames import FrameError


def test_messages_arrive_as_they_were_sent() -> None:
    sent = [{"a": 1}, {"text": "ünï\ud800\0\n"}, {}]
    stream = io.BytesIO(b"".join(map(frames.encode, sent)))
    assert [frames.read(stream), frames.read(stream), frames.read(stream)] == sent
    assert frames.read(stream) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0",
        b"\0\0\0\5{}",
        b"\0\0\0\2[]",
        b"\0\0\0\2{x",
        b"\0\0\0\1\xff",
        b"\xff\xff\xff\xff{}",
        (lambda deep: len(deep).to_bytes(4, "big") + deep)(b"[" * 100_000),
    ],
)
def test_nonsense_is_an_error_for_both_ends(data: bytes) -> None:
    with pytest.raises(FrameError):
        frames.read(io.BytesIO(data))

    async def receive() -> None:
        stream = asyncio.StreamReader()
        stream.feed_data(data)
        stream.feed_eof()
        await frames.receive(stream)

    with pytest.raises((FrameError, asyncio.IncompleteReadError)):
        asyncio.run(receive())


def test_a_message_beyond_the_limit_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_BODY_BYTES", 10)
    with pytest.raises(FrameError, match="larger than the limit of 10"):
        frames.encode({"text": "0123456789"})


@pytest.mark.parametrize(
    "measurement",
    [
        Measurement(Outcome.OK, (0.1, 0.2), 0.3),
        Measurement(Outcome.WRONG_RESULT, build_secs=1.0, error="off by one"),
    ],
)
def test_measurements_survive_the_way(measurement: Measurement) -> None:
    stream = io.BytesIO(frames.encode({"measurement": frames.from_measurement(measurement)}))
    message = frames.read(stream)
    assert message is not None
    assert frames.to_measurement(message["measurement"]) == measurement


GOOD = frames.from_measurement(Measurement(Outcome.OK, (0.1,)))


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
def test_a_child_that_went_mad_reports_no_measurement(message: object) -> None:
    with pytest.raises(FrameError, match="not a measurement"):
        frames.to_measurement(message)


def test_a_child_that_went_mad_reports_no_numbers() -> None:
    assert frames.to_numbers([0, 7]) == {0, 7}
    for message in (None, 7, "text", {}, ["a"], [-1], [1.5], [[]]):
        with pytest.raises(FrameError, match="number"):
            frames.to_numbers(message)


@pytest.mark.parametrize(
    "built",
    [
        BuildRequest("{}", "module", "trace", (1, 2)),
        BuildRequest("{}", "module", "trace", (), library="/tmp/library"),
        BuildRequest("{}", "module", "trace", (), export=True),
    ],
)
def test_build_requests_survive_the_way(built: BuildRequest) -> None:
    message = frames.read(io.BytesIO(frames.encode(frames.from_build_request(built) | {"number": 3})))
    assert message is not None
    assert frames.to_build_request(message) == built


@pytest.mark.parametrize("exported", [Exported(bytes(range(256)), 0.5), Measurement(Outcome.BUILD_ERROR)])
def test_libraries_survive_the_way(exported: Exported | Measurement) -> None:
    message = frames.read(io.BytesIO(frames.encode(frames.from_export(exported))))
    assert message is not None
    assert frames.to_export(message) == exported


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
def test_a_child_that_went_mad_exports_nothing(message: frames.Message) -> None:
    with pytest.raises(FrameError, match="not a"):
        frames.to_export(message)


def test_machines_survive_the_way_and_nonsense_does_not() -> None:
    machines = Machines(("x86_64",), ("no linker for aarch64",))
    assert frames.to_machines(frames.from_machines(machines)) == machines
    for message in ({}, {"names": 7, "problems": []}, []):
        with pytest.raises(FrameError, match="not a list of machines"):
            frames.to_machines(message)  # type: ignore[arg-type]
