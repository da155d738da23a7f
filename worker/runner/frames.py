"""Frames: the JSON objects that travel between the agent and its child, each behind its length.

A frame is the length of its body in bytes (4 bytes, big-endian), then the body. The body is JSON rather than
a pickle: a child that has run a broken kernel may send anything, and reading it must stay harmless. So the
agent also says how long a reply may be before it reads one.
"""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any, BinaryIO

# Large enough for the longest text of a workload, its quotes escaped.
MAX_BODY_BYTES = 128 << 20
# Large enough for every reply without a library in it.
MAX_REPLY_BYTES = 1 << 20

Message = dict[str, Any]

_LENGTH = struct.Struct(">I")


class FrameError(ValueError):
    """The bytes are no frame, or the message in it isn't the expected one."""


def encode(message: Message) -> bytes:
    """Return the message as a frame. Raises FrameError when it is too large."""
    body = json.dumps(message, separators=(",", ":")).encode()
    if len(body) > MAX_BODY_BYTES:
        raise FrameError(f"a message of {len(body)} bytes is larger than the limit of {MAX_BODY_BYTES}")
    return _LENGTH.pack(len(body)) + body


def read(stream: BinaryIO) -> Message | None:
    """Block until the next message has arrived; None at the end of the stream. Raises FrameError."""
    head = stream.read(_LENGTH.size)
    if not head:
        return None
    if len(head) < _LENGTH.size:
        raise FrameError("the stream ended within a frame")
    length = _body_length(head, MAX_BODY_BYTES)
    body = stream.read(length)
    if len(body) < length:
        raise FrameError("the stream ended within a frame")
    return _decode(body)


async def receive(stream: asyncio.StreamReader, max_bytes: int = MAX_REPLY_BYTES) -> Message:
    """Await the next message, whose body has at most `max_bytes`.

    Raises FrameError, and IncompleteReadError at the end of the stream.
    """
    head = await stream.readexactly(_LENGTH.size)
    return _decode(await stream.readexactly(_body_length(head, max_bytes)))


def _body_length(head: bytes, max_bytes: int) -> int:
    length: int = _LENGTH.unpack(head)[0]
    if length > max_bytes:
        raise FrameError(f"a frame of {length} bytes is larger than the limit of {max_bytes}")
    return length


def _decode(body: bytes) -> Message:
    try:
        message = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a frame is not JSON: {error}") from error
    if not isinstance(message, dict):
        raise FrameError(f"a frame holds a {type(message).__name__}, not an object")
    return message
