"""Frames: messages between the agent and its child, each preceded by its length.

A frame is the length of its body in bytes (4 bytes, big-endian), then the body: a message of
`proto/child.proto`. A child that has run a broken kernel may send anything. So the agent limits the length of
a reply before reading it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:  # the child reads files
    import asyncio

# Large enough for the longest workload.
MAX_BODY_BYTES = 128 << 20
# Large enough for every reply without a library.
MAX_REPLY_BYTES = 1 << 20

_LENGTH = struct.Struct(">I")


class FrameError(ValueError):
    """The bytes aren't a frame, or its message isn't the expected one."""


def encode(body: bytes) -> bytes:
    """Return the body as a frame. Raises FrameError if it is too large."""
    if len(body) > MAX_BODY_BYTES:
        raise FrameError(f"a message of {len(body)} bytes is larger than the limit of {MAX_BODY_BYTES}")
    return _LENGTH.pack(len(body)) + body


def read(stream: BinaryIO) -> bytes | None:
    """Wait for the next frame, and return its body; None at the end of the stream.

    Raises FrameError.
    """
    head = stream.read(_LENGTH.size)
    if not head:
        return None
    if len(head) < _LENGTH.size:
        raise FrameError("the stream ended within a frame")
    length = _body_length(head, MAX_BODY_BYTES)
    body = stream.read(length)
    if len(body) < length:
        raise FrameError("the stream ended within a frame")
    return body


async def receive(stream: asyncio.StreamReader, max_bytes: int = MAX_REPLY_BYTES) -> bytes:
    """Await the next frame, and return its body of at most `max_bytes`.

    Raises FrameError, and IncompleteReadError at the end of the stream.
    """
    head = await stream.readexactly(_LENGTH.size)
    return await stream.readexactly(_body_length(head, max_bytes))


def _body_length(head: bytes, max_bytes: int) -> int:
    length: int = _LENGTH.unpack(head)[0]
    if length > max_bytes:
        raise FrameError(f"a frame of {length} bytes is larger than the limit of {max_bytes}")
    return length
