"""Run the compiler on strangers' input in a child process, under limits.

TVM is native code that trusts its input: a file can crash it, hang it or fill the memory. A stranger's model
(`compiler.sandbox.models`) or trace (`compiler.sandbox.traces`) therefore goes to a child process, which is
thrown away afterwards.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

from compiler.importing.spec import first_line
from system.environment import allowed_variables
from system.linux import die_with_parent

# TVM, LLVM and Python map gigabytes before they do anything.
BASE_MEMORY_BYTES = 8 << 30
# An import may take this much on top of what a process with TVM has anyway. Weights are in memory several
# times over.
WORKING_BYTES = 1 << 30
MEMORY_PER_MODEL_BYTE = 16
STATM = Path("/proc/self/statm")
TOO_MUCH_MEMORY = "it takes too much memory"


# The parent's side


def run_child(module: str, request: bytes, timeout_s: float) -> tuple[bytes, int | None]:
    """Run `python -m module` on a request; return its reply and its exit status.

    The status is None for a child that took longer than `timeout_s` and was killed.
    """
    path = os.pathsep.join(path for path in sys.path if path)
    # Linkers keep caches in these folders.
    folders = {name: os.environ[name] for name in ("HOME", "TMPDIR") if name in os.environ}
    # TVM starts a thread for each core, whose stacks would count as memory.
    settings = {"PYTHONPATH": path, "TVM_NUM_THREADS": "1"}
    child = subprocess.Popen(
        [sys.executable, "-m", module, str(os.getpid())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=allowed_variables(os.environ) | folders | settings,
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


def describe_exit(status: int) -> str:
    """Return a predicate for a child that exited with this status before it had replied."""
    if status < 0:
        return f"crashed the compiler ({signal.Signals(-status).name})"
    return f"ended the compiler (exit status {status})"


def physical_memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()


# The child's side


def enter_sandbox(memory_bytes: int) -> None:
    """Limit this process's address space, and have it die with its parent.

    SIGTERM and SIGINT are ignored: a scheduler that is stopped with its whole process group waits for the
    reply.
    """
    # A thread could not watch the parent instead: while TVM compiles, no Python code runs.
    die_with_parent(parent_pid=int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def redirect_stdout() -> BinaryIO:
    """Return a stream for the reply, and send what TVM prints to standard error instead."""
    reply = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return reply


def limit_data_segment(model_bytes: int) -> None:
    """Limit what this process, which has loaded TVM, may allocate to what the import of a model of this size
    may take. `lift_data_limit` ends that. Only Linux can do so."""
    try:
        pages = int(STATM.read_text().split()[5])
    except OSError:
        return
    most = pages * resource.getpagesize() + WORKING_BYTES + MEMORY_PER_MODEL_BYTE * model_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def lift_data_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def describe_error(error: Exception) -> str:
    """Return one line about an error of any library: strangers' input raises what nobody foresaw."""
    if isinstance(error, MemoryError) or "bad_alloc" in str(error):
        return TOO_MUCH_MEMORY
    return first_line(error)
