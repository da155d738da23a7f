"""Traces of strangers are tried in a child process first: `compiler.sandbox.child` says why.

The child replays them one after the other, each on its workload, compiles what comes of it, and says so: what
it dies of is the one after the last that it spoke of. Only what survives that is replayed here.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compiler.importing.spec import first_line
from compiler.sandbox.child import BASE_MEMORY_BYTES, describe_exit, enter_sandbox, redirect_stdout, run_child


@dataclass(frozen=True)
class ReplayLimits:
    """Seconds that a child and TVM may take to start, seconds for each trace, and of address space."""

    start_s: float = 60.0
    each_s: float = 30.0
    memory_bytes: int = BASE_MEMORY_BYTES

    def __post_init__(self) -> None:
        if self.start_s <= 0 or self.each_s <= 0 or self.memory_bytes <= 0:
            raise ValueError(f"limits must be positive, not {self}")


def check_traces(
    pairs: Sequence[tuple[str, str]], target: str, limits: ReplayLimits | None = None
) -> list[str]:
    """What is wrong with each pair of a workload and a trace, both JSON text; empty where nothing is."""
    problems: list[str] = []
    while len(problems) < len(pairs):
        problems += _of_child(pairs[len(problems) :], target, limits or ReplayLimits())
    return problems


def _of_child(pairs: Sequence[tuple[str, str]], target: str, limits: ReplayLimits) -> list[str]:
    """What is wrong with each, until the first that the child didn't survive."""
    request = {"target": target, "memory_bytes": limits.memory_bytes, "pairs": list(pairs)}
    timeout_s = limits.start_s + limits.each_s * len(pairs)
    replies, status = run_child("compiler.sandbox.traces", json.dumps(request).encode(), timeout_s)
    problems = [str(json.loads(line)["problem"]) for line in replies.splitlines()]
    return problems if len(problems) == len(pairs) else [*problems, _end(status)]


def _end(status: int | None) -> str:
    if status is None:
        return "it keeps the compiler busy for too long"
    return f"it {describe_exit(status)}"


def _problems(request: Mapping[str, Any]) -> Iterator[str]:
    enter_sandbox(request["memory_bytes"])
    from compiler.target import parse_target  # after the limits: this loads TVM

    target = parse_target(request["target"])
    for module_json, trace in request["pairs"]:
        yield _problem(module_json, trace, target)


def _problem(module_json: str, trace: str, target: Any) -> str:
    from compiler.codegen.steps import compile_scheduled
    from compiler.lowering.trace import apply_trace
    from compiler.workload import from_json

    try:
        executable, _ = compile_scheduled(apply_trace(from_json(module_json), trace), target)
        with tempfile.TemporaryDirectory(prefix="tunefarm-") as folder:
            # LLVM emits machine code no sooner than it is asked for it.
            executable.mod.write_to_file(str(Path(folder) / "kernel.o"))
    except MemoryError:
        return "it takes too much memory"
    except Exception as error:  # TVM raises whatever class its C++ side names
        return first_line(error)
    return ""


def _main() -> None:
    replies = redirect_stdout()
    for problem in _problems(json.loads(sys.stdin.buffer.read())):
        replies.write(json.dumps({"problem": problem}).encode() + b"\n")
        replies.flush()
    # TVM's threads and tear-down have nothing to add.
    os._exit(0)


if __name__ == "__main__":
    _main()
