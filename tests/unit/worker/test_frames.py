"""Frames arrive unchanged. Other bytes are errors."""

from __future__ import annotations

import asyncio
import io

import pytest

from worker.runner import frames
from worker.runner.frames import FrameError


def test_messages_arrive_as_they_were_sent() -> None:
    sent = [b"abc", bytes(range(256)), b""]
    stream = io.BytesIO(b"".join(frames.encode(message) for message in sent))
    assert [frames.read(stream), frames.read(stream), frames.read(stream)] == sent
    assert frames.read(stream) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0",
        b"\0\0\0\5{}",
        b"\xff\xff\xff\xff{}",
    ],
)
def test_invalid_frames_are_errors_on_both_ends(data: bytes) -> None:
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
        frames.encode(b"0123456789a")
