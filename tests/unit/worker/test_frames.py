from __future__ import annotations

import asyncio
import io

import pytest

from search.measurement import Measurement, Outcome
from worker import frames
from worker.frames import FrameError


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
