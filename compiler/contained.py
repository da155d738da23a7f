"""A model of a stranger is tried in a child process first: what it does to TVM, it does there.

TVM is native code that trusts its input: a file can crash it, hang it or fill the memory. The child imports
and fuses the model under limits and is thrown away; only a model that survives that is imported here.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from compiler.onnx_file import MAX_FILE_BYTES
from compiler.spec import ModelError, Shape, first_line

# TVM, LLVM and Python map gigabytes before they do anything.
BASE_MEMORY_BYTES = 8 << 30
# What an import may take beyond what a process with TVM has anyway, here and so in the scheduler as well.
# Weights are held several times over.
WORKING_BYTES = 1 << 30
MEMORY_PER_MODEL_BYTE = 16
STATM = Path("/proc/self/statm")


@dataclass(frozen=True)
class Limits:
    """`memory_bytes` bounds the child's address space; None derives it from the model's size."""

    timeout_s: float = 300.0
    memory_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.timeout_s <= 0:
            raise ValueError(f"a time limit must be positive, not {self.timeout_s}")

    def memory_for(self, model_bytes: int) -> int:
        return self.memory_bytes or BASE_MEMORY_BYTES + MEMORY_PER_MODEL_BYTE * model_bytes


def try_model(data: bytes, shapes: Mapping[str, Shape], target: str, limits: Limits | None = None) -> None:
    """Import and fuse a .onnx file in a child process. Returns when that went well.

    Raises ModelError: what the import itself says, or that it crashed, ran out of memory or took too long.
    """
    if len(data) > MAX_FILE_BYTES:
        raise ModelError(f"the model file has {len(data)} bytes; the limit is {MAX_FILE_BYTES}")
    limits = limits or Limits()
    request = {
        "shapes": dict(shapes),
        "target": target,
        "memory_bytes": limits.memory_for(len(data)),
        "model_bytes": len(data),
    }
    reply, status = run_child(
        "compiler.contained", json.dumps(request).encode() + b"\n" + data, limits.timeout_s
    )
    if status is None:
        raise ModelError(f"importing the model takes longer than {limits.timeout_s:g} s")
    problem = _problem(reply, status)
    if problem:
        raise ModelError(problem)


def _child_environment() -> dict[str, str]:
    """Of a process of our own code, which loads TVM."""
    path = os.pathsep.join(path for path in sys.path if path)
    # The stacks of TVM's threads, of which there is one for each core, would count as memory.
    return {**os.environ, "PYTHONPATH": path, "TVM_NUM_THREADS": "1"}


def run_child(module: str, request: bytes, timeout_s: float) -> tuple[bytes, int | None]:
    """What a module of ours replies in a process of its own, and its exit status: None where it took longer
    and was killed."""
    child = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_child_environment(),
    )
    with child:
        try:
            reply, _ = child.communicate(request, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            reply, _ = child.communicate()
            return reply, None
        finally:
            child.kill()
    return reply, child.returncode


def _problem(reply: bytes, status: int) -> str:
    """What went wrong in the child, empty when nothing did."""
    try:
        return str(json.loads(reply)["problem"])
    except (ValueError, KeyError, TypeError):
        if status < 0:
            return f"importing the model crashed the compiler ({signal.Signals(-status).name})"
        return f"importing the model ended the compiler (exit status {status})"


def limit_growth(model_bytes: int) -> None:
    """Let this process, which has loaded TVM, take no more memory than the import of such a model may."""
    try:
        pages = int(STATM.read_text().split()[5])
    except OSError:
        return  # not Linux
    most = pages * resource.getpagesize() + WORKING_BYTES + MEMORY_PER_MODEL_BYTE * model_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (most,) * 2)


def _try_here(source: BinaryIO) -> str:
    request = json.loads(source.readline())
    resource.setrlimit(resource.RLIMIT_AS, (request["memory_bytes"],) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from compiler.model import extract_tasks, fuse, read_onnx  # after the limits: this loads TVM

    limit_growth(request["model_bytes"])
    try:
        shapes = {name: tuple(shape) for name, shape in request["shapes"].items()}
        extract_tasks(fuse(read_onnx(source.read(), shapes), request["target"]))
    except ModelError as error:
        return str(error)
    except MemoryError:
        return "importing the model takes too much memory"
    except Exception as error:  # what nobody foresaw in a stranger's file is a reason as well
        return f"the model can't be imported: {first_line(error)}"
    return ""


def _main() -> None:
    # TVM prints to standard output; the reply keeps it for itself.
    reply = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    problem = _try_here(sys.stdin.buffer)
    reply.write(json.dumps({"problem": problem}).encode())
    reply.flush()
    # TVM's threads and tear-down have nothing to add.
    os._exit(0)


if __name__ == "__main__":
    _main()
