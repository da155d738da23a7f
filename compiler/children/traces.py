"""Try untrusted traces in a child process (`compiler.children.child` says why).

The child replays and compiles the traces in order, and reports on each. If it dies, the first trace without a
report killed it. Other processes replay only traces that passed.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from compiler.children.child import (
    BASE_MEMORY_BYTES,
    MAX_REPLY_BYTES,
    describe_error,
    describe_exit,
    run_child,
    serve,
    write_line,
)


@dataclass(frozen=True)
class ReplayLimits:
    """Limits: seconds to start the child and TVM, seconds for each trace, bytes of memory."""

    start_s: float = 60.0
    each_s: float = 30.0
    memory_bytes: int = BASE_MEMORY_BYTES

    def __post_init__(self) -> None:
        if self.start_s <= 0 or self.each_s <= 0 or self.memory_bytes <= 0:
            raise ValueError(f"limits must be positive, not {self}")


def check_traces(
    pairs: Sequence[tuple[str, str]], target: str, limits: ReplayLimits | None = None
) -> list[str]:
    """Return the problem of each pair of a workload and a trace (JSON texts); "" for a valid one."""
    limits = limits or ReplayLimits()
    problems: list[str] = []
    while len(problems) < len(pairs):
        rest = pairs[len(problems) :]
        request = {"target": target, "memory_bytes": limits.memory_bytes, "pairs": list(rest)}
        timeout_s = limits.start_s + limits.each_s * len(rest)
        message = json.dumps(request).encode()
        with run_child("compiler.children.traces", message, timeout_s, limits.memory_bytes) as (
            reply,
            status,
        ):
            lines = reply.read(MAX_REPLY_BYTES).splitlines()
        for line in lines[: len(rest)]:
            try:
                problems.append(str(json.loads(line)["problem"]))
            except (ValueError, TypeError, KeyError, RecursionError):
                break  # the child is compromised, or died while writing
        if len(problems) < len(pairs):
            # The next trace killed the child. Another child continues after it.
            problems.append(
                "compiling it takes too long" if status is None else f"it {describe_exit(status)}"
            )
    return problems


# The child's side


def _answer(request: dict[str, Any], reply: BinaryIO) -> None:
    from compiler.target import parse_target  # loads TVM: after setting the limits

    target = parse_target(request["target"])
    for module_json, trace in request["pairs"]:
        write_line(reply, {"problem": _problem(module_json, trace, target)})


def _problem(module_json: str, trace: str, target: Any) -> str:
    """Replay and compile one trace; return its problem, "" for a valid trace."""
    from compiler.codegen.compilation import compile_scheduled
    from compiler.lowering.trace import apply_trace
    from compiler.workload import from_json

    try:
        executable, _ = compile_scheduled(apply_trace(from_json(module_json), trace), target)
        with tempfile.TemporaryDirectory(prefix="tunefarm-") as folder:
            # LLVM emits machine code only on request.
            executable.mod.write_to_file(str(Path(folder) / "kernel.o"))
    except Exception as error:  # TVM's C++ code may raise any exception class
        return describe_error(error)
    return ""


if __name__ == "__main__":
    serve(_answer)
