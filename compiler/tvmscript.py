"""TVMScript, without a search for the source of every frame of the stack.

TVM asks `inspect` for the stack at each function that is defined in TVMScript, and `inspect` looks each
frame up in all modules. To import all of TVM's intrinsics took 18 seconds that way; it takes three. TVM reads
the variables of the frames, and the source of one of them.
"""

from __future__ import annotations

import inspect
import sys
from types import FrameType, SimpleNamespace

from tvm.script import tirx as T  # noqa: N812 - TVM's parser wants this name
from tvm.tirx.script.parser import entry

__all__ = ["T"]

# The number of the frame whose line tells TVM whether the function is defined in a class.
FRAME_WITH_SOURCE = 2


def _stack() -> list[inspect.FrameInfo]:
    """Return what `inspect.stack` returns to its caller, with the source of one frame."""
    frames: list[inspect.FrameInfo] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if len(frames) == FRAME_WITH_SOURCE:
            found = inspect.getframeinfo(frame)
        else:
            code = frame.f_code
            found = inspect.Traceback(code.co_filename, frame.f_lineno, code.co_name, None, None)
        frames.append(inspect.FrameInfo(frame, *found))
        frame = frame.f_back
    return frames


entry.inspect = SimpleNamespace(**{**vars(inspect), "stack": _stack})
