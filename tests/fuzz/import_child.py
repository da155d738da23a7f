"""Imports the files that come in, one after the other, as the scheduler's child does with a stranger's model.

    python -m tests.fuzz.import_child

A request is a length, whether to fuse the model too, and the file. An answer is a line of JSON: how it ended
(`imported`, `refused` with our own error, or `untyped`), in what words, and the most memory taken so far.
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
    # TVM prints to standard output; the answers keep it for themselves.
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    from compiler.importing.model import extract_tasks, fuse, read_onnx
    from compiler.sandbox.child import limit_data_segment

    limit_data_segment(0)
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
    """The next one, None when there is no more."""
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
    """The most memory that this process has had at once. Not of `getrusage`, which counts what started it."""
    lines = STATUS.read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    sys.exit(main())
