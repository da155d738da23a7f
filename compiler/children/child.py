"""Run the compiler on untrusted input in a child process, under limits.

TVM is native code that trusts its input: a file can crash it, hang it, fill the memory, and perhaps take the
process over. So untrusted models (`compiler.children.models`) and traces (`compiler.children.traces`) go to a
child process. Its sandbox blocks the network and the file system, and it ends after one request.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any, BinaryIO, NoReturn, TypeGuard

from compiler.importing.spec import ModelError, first_line, is_out_of_memory
from core.plain_text import without_controls
from sandbox.cache_seed import CACHE_FOLDER, ZIG_CACHE, CacheSeed
from sandbox.environment import allowed_variables
from sandbox.family_memory import INTERVAL_S, bytes_above, most_bytes
from sandbox.limits import limit_memory
from sandbox.reaper import END_SIGNAL, END_TIMEOUT_S
from system.packages import python_path

_log = logging.getLogger(__name__)

# The memory that LLVM and a reference runtime may take for a model of any size.
BASE_MEMORY_BYTES = 8 << 30
# The memory that an import may take on top of a process with TVM. It holds several copies of the weights.
WORKING_BYTES = 1 << 30
MEMORY_PER_MODEL_BYTE = 16
# The largest reply without a library.
MAX_REPLY_BYTES = 256 << 20
MAX_REPORT_BYTES = 65536
# The end of a crashed child's standard error that is logged: TVM and Python write where it crashed.
_LAST_WORDS_BYTES = 4000
# The exit statuses of native code with a fault.
_CRASHES = frozenset(
    -one for one in (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL)
)
TOO_MUCH_MEMORY = "it takes too much memory"


# The parent's side


@contextmanager
def run_child(
    module: str,
    request: bytes,
    timeout_s: float,
    memory_bytes: int,
    files: tuple[IO[bytes], ...] = (),
    seed: CacheSeed | None = None,
    fills_seed: bool = False,
) -> Iterator[tuple[IO[bytes], int | None]]:
    """Run `python -m module` on a request; yield the reply's file and the exit status.

    The reply may hold a library of gigabytes. Limit how much of it you read, because a compromised child may
    write any amount. The status is None if the child was killed after `timeout_s`. It is -SIGKILL if its
    processes together exceeded the limit that `sandbox.family_memory` derives from `memory_bytes`. The child
    inherits the descriptors of `files`, and gets a copy of `seed` as the linker's cache. With `fills_seed`, a
    child that succeeds fills the seed. Raises ModelError if the child can't be started.
    """
    with tempfile.TemporaryFile() as reply:
        with (
            tempfile.TemporaryDirectory(prefix="tunefarm-compile-", ignore_cleanup_errors=True) as scratch,
            tempfile.TemporaryFile() as report,
            tempfile.TemporaryFile() as given,
            tempfile.TemporaryFile() as errors,
        ):
            # A file, not a pipe: a request may exceed a pipe's buffer before the child reads it.
            given.write(request)
            given.seek(0)
            # TVM starts a thread for each core, and their stacks would count as memory.
            settings = {"TVM_NUM_THREADS": "1", "HOME": scratch, "TMPDIR": scratch}
            settings["PYTHONPATH"] = python_path(os.environ)
            if seed is not None:
                cache = Path(scratch) / CACHE_FOLDER
                seed.copy_to(cache)
                settings[ZIG_CACHE] = str(cache)
            command = [sys.executable, "-P", "-m", "compiler.children.start", module]
            command += map(str, (os.getpid(), report.fileno(), scratch))
            child = subprocess.Popen(
                command,
                stdin=given,
                stdout=reply,
                stderr=errors,
                env=allowed_variables(os.environ) | settings,
                pass_fds=[report.fileno(), *(file.fileno() for file in files)],
                # The child doesn't get signals that are sent to this process's group.
                start_new_session=True,
            )
            with child:
                status: int | None = None
                try:
                    status = _finish(child, timeout_s, most_bytes(memory_bytes))
                finally:
                    _end(child)
            if crashed(status):
                _log.warning("%s %s: %s", module, describe_exit(status), _last_words(errors))
            if seed is not None and fills_seed and status == 0:
                seed.fill_from(cache)
            report.seek(0)
            started = json.loads(report.read(MAX_REPORT_BYTES) or b"{}")
            if "failure" in started:
                failure = " ".join(started["failure"].split())
                raise ModelError(f"the compiler can't be started in its sandbox on this machine: {failure}")
            for gap in started.get("gaps", ()):
                _warn_once(gap)
        reply.seek(0)
        yield reply, status


def _last_words(errors: IO[bytes]) -> str:
    """Return the end of a child's standard error as one line."""
    errors.seek(max(size_of(errors) - _LAST_WORDS_BYTES, 0))
    return without_controls(" ".join(errors.read(_LAST_WORDS_BYTES).decode(errors="replace").split()))


def _finish(child: subprocess.Popen[bytes], timeout_s: float, family_most: int) -> int | None:
    """Wait until a child ends. Return its exit status; None if it exceeded its time limit."""
    deadline = time.monotonic() + timeout_s
    while (left_s := deadline - time.monotonic()) > 0:
        try:
            return child.wait(min(left_s, INTERVAL_S))
        except subprocess.TimeoutExpired:
            pass
        if taken := bytes_above(child.pid, family_most):
            _log.warning(
                "a child's processes use %d bytes of memory, more than the limit of %d", taken, family_most
            )
            return -signal.SIGKILL
    return None


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill a child and every process that it started."""
    child.send_signal(END_SIGNAL)
    try:
        child.wait(END_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        child.kill()


@contextmanager
def run_on_model(
    module: str,
    model: bytes | IO[bytes],
    request: Mapping[str, object],
    timeout_s: float,
    memory_bytes: int,
    seed: CacheSeed | None = None,
) -> Iterator[tuple[IO[bytes], int | None]]:
    """Run a child as `run_child` does. The request's field `model` is the descriptor of the model's file."""
    with _as_file(model) as file:
        message = json.dumps({**request, "model": file.fileno()}).encode()
        with run_child(module, message, timeout_s, memory_bytes, (file,), seed) as replied:
            yield replied


@contextmanager
def _as_file(data: bytes | IO[bytes]) -> Iterator[IO[bytes]]:
    """Yield a model as a file that a child can map into its memory."""
    if not isinstance(data, bytes):
        yield data
        return
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        yield file


def size_of(data: bytes | IO[bytes]) -> int:
    """Return the size of a model in bytes."""
    return len(data) if isinstance(data, bytes) else os.fstat(data.fileno()).st_size


def import_memory_bytes(model_bytes: int) -> int:
    """Return the bytes of memory that importing a model may take, on top of a process with TVM."""
    return WORKING_BYTES + MEMORY_PER_MODEL_BYTE * model_bytes


@cache
def _warn_once(gap: str) -> None:
    _log.warning("%s", gap)


def crashed(status: int | None) -> TypeGuard[int]:
    """Return whether a fault in native code ended a child with this exit status."""
    return status in _CRASHES


def describe_exit(status: int) -> str:
    """Describe the end of a child that exited before it replied, as a predicate such as "crashed the
    compiler".
    """
    if status < 0:
        return f"crashed the compiler ({signal.Signals(-status).name})"
    return f"ended the compiler (exit status {status})"


# The child's side


def serve(answer: Callable[[dict[str, Any], BinaryIO], None]) -> NoReturn:
    """Answer the request on standard input with at most `memory_bytes` more memory, then exit. `answer` gets
    the request's other fields, and a stream for the reply. Standard output is redirected to standard error,
    because TVM prints.
    """
    faulthandler.enable()
    gc.freeze()
    gc.enable()
    with os.fdopen(os.dup(1), "wb") as reply:
        os.dup2(2, 1)
        request = json.load(sys.stdin.buffer)
        limit_memory(request.pop("memory_bytes"))
        answer(request, reply)
    # Skip the tear-down of TVM and its threads.
    os._exit(0)


def write_line(reply: BinaryIO, fields: Mapping[str, Any]) -> None:
    """Write a line of JSON and flush it, so that it survives a later crash."""
    reply.write(json.dumps(fields).encode() + b"\n")
    reply.flush()


def describe_error(error: Exception) -> str:
    """Return one line about any exception: untrusted input may raise any class."""
    return TOO_MUCH_MEMORY if is_out_of_memory(error) else first_line(error)
