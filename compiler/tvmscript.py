"""TVMScript that doesn't look up the source of every frame of the stack.

For each function in TVMScript, TVM calls `inspect.stack`, which looks up each frame in all loaded modules.
TVM needs only the frames' variables and the source of one frame. Importing all of TVM's intrinsics takes
three seconds this way, and 18 otherwise.
"""

from __future__ import annotations

import inspect
import sys
from types import FrameType, SimpleNamespace

from tvm.script import tirx as T  # noqa: N812 - TVM's parser wants this name
from tvm.tirx.script.parser import entry

__all__ = ["T"]

# The index of the frame whose source line tells TVM whether the function is defined in a class.
FRAME_WITH_SOURCE = 2


def _stack() -> list[inspect.FrameInfo]:
    """Replaces `inspect.stack`. Only one frame has its source."""
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
