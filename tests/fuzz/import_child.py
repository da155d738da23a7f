"""Import ONNX files from standard input in order, as the scheduler's child imports a user's model.

    python -m tests.fuzz.import_child

A request has the file's length, whether to fuse the model too, and the file. An answer is a line of JSON: how
the import ended (`imported`, `refused` with our own error, or `untyped`), its message, and the peak memory.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
import warnings
from pathlib import Path
from typing import BinaryIO

STATUS = Path("/proc/self/status")
HEADER = struct.Struct("<I?")
TARGET = '{"kind":"llvm","num-cores":2}'


def main() -> int:
    # Standard output is for answers, so TVM's prints go to standard error.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    from compiler.children.child import import_memory_bytes
    from compiler.importing.model import extract_tasks, fuse, read_onnx
    from sandbox.limits import limit_memory

    limit_memory(import_memory_bytes(0))
    answers.write(_line("ready", ""))
    while (request := _request(sys.stdin.buffer)) is not None:
        data, fuses = request
        try:
            model = read_onnx(data, {})
            if fuses:
                extract_tasks(fuse(model, TARGET))
        except Exception as error:
            answers.write(_line(_how(error), str(error)))
        else:
            answers.write(_line("imported", ""))
    return 0


def _request(source: BinaryIO) -> tuple[bytes, bool] | None:
    """Return the next request, None at the end of the input."""
    header = source.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    length, fuses = HEADER.unpack(header)
    return source.read(length), fuses


def _how(error: Exception) -> str:
    from compiler.importing.spec import ModelError

    return "refused" if isinstance(error, ModelError) else f"untyped {type(error).__name__}"


def _line(how: str, words: str) -> bytes:
    return json.dumps({"how": how, "words": words[:500], "peak_bytes": _peak_bytes()}).encode() + b"\n"


def _peak_bytes() -> int:
    """Return the peak memory of this process. `getrusage` would count its parent before `exec` too."""
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    sys.exit(main())
