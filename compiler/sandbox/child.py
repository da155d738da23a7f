"""Asking a child process of the compiler: what a stranger's input does to TVM, it does there.

TVM is native code that trusts its input: a file can crash it, hang it or fill the memory. Models of strangers
(`compiler.sandbox.models`) and their traces (`compiler.sandbox.traces`) are handled by a child under
limits, which is thrown away.
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import BinaryIO

from system.environment import allowed_variables
from system.linux import die_with_parent

# TVM, LLVM and Python map gigabytes before they do anything.
BASE_MEMORY_BYTES = 8 << 30
# What an import may take beyond what a process with TVM has anyway. Weights are held several times over.
WORKING_BYTES = 1 << 30
MEMORY_PER_MODEL_BYTE = 16
STATM = Path("/proc/self/statm")


# The parent's side


def run_child(module: str, request: bytes, timeout_s: float) -> tuple[bytes, int | None]:
    """What a module of ours replies in a process of its own, and its exit status: None where it took longer
    and was killed."""
    child = subprocess.Popen(
        [sys.executable, "-m", module, str(os.getpid())],
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


def describe_exit(status: int) -> str:
    """What a child that ended with this status, before it had replied, did to the compiler."""
    if status < 0:
        return f"crashed the compiler ({signal.Signals(-status).name})"
    return f"ended the compiler (exit status {status})"


def physical_memory_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * resource.getpagesize()


def _child_environment() -> dict[str, str]:
    """Of a process of our own code, which loads TVM, and where linkers keep what they have made before."""
    path = os.pathsep.join(path for path in sys.path if path)
    folders = {name: os.environ[name] for name in ("HOME", "TMPDIR") if name in os.environ}
    # The stacks of TVM's threads, of which there is one for each core, would count as memory.
    return allowed_variables(os.environ) | folders | {"PYTHONPATH": path, "TVM_NUM_THREADS": "1"}


# The child's side


def enter_sandbox(memory_bytes: int) -> None:
    """Bound this process's address space, and its life by its parent's.

    Who stops the parent with its whole group lets it finish this.
    """
    # A thread of our own could not watch the parent: while TVM compiles, Python stands still.
    die_with_parent(parent_pid=int(sys.argv[1]))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def redirect_stdout() -> BinaryIO:
    """Where the reply goes. TVM prints to standard output, which from now on is standard error."""
    reply = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return reply


def limit_data_segment(model_bytes: int) -> None:
    """Let this process, which has loaded TVM, take no more memory than the import of such a model may, until
    `lift_data_limit`."""
    try:
        pages = int(STATM.read_text().split()[5])
    except OSError:
        return  # not Linux
    most = pages * resource.getpagesize() + WORKING_BYTES + MEMORY_PER_MODEL_BYTE * model_bytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def lift_data_limit() -> None:
    """Let it grow as far as its address space goes."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
