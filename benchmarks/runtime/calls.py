"""Calls of a compiled model from C and Python, and of its kernel alone; how long a process loads a model."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tunefarm_runtime.bundle import SOURCES

from benchmarks.timing.interleaved import Block, time_calls

# A call of a tiny model takes less than the clock can tell: this many are timed as one.
BATCH = 500
_LOAD = """
import json, sys, time
begin = time.perf_counter()
import numpy, tunefarm_runtime
imported = time.perf_counter()
model = tunefarm_runtime.load(sys.argv[1], threads=int(sys.argv[2]))
loaded = time.perf_counter()
model(*(numpy.zeros(one.shape, one.numpy_dtype) for one in model.inputs))
called = time.perf_counter()
print(json.dumps([imported - begin, loaded - imported, called - loaded]))
"""


def load_s(folder: Path, threads: int) -> tuple[float, float, float]:
    """Return the seconds that a new process takes to import the runtime, to load a model, and for its first
    call."""
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, str(folder), str(threads)], capture_output=True, text=True
    )
    if done.returncode != 0:
        raise RuntimeError(f"{folder} can't be loaded: {done.stderr.strip()[-500:]}")
    imported_s, loaded_s, called_s = json.loads(done.stdout)
    return imported_s, loaded_s, called_s


def time_batches(call: Callable[[], object], block: Block) -> tuple[float, ...]:
    """Time one turn of a call that takes microseconds; return the seconds of a call in each batch."""

    def batch() -> None:
        for _ in range(BATCH):
            call()

    return tuple(each / BATCH for each in time_calls(batch, block))


def build_program(folder: Path, bundle: Path) -> Path:
    """Compile the program that times a bundle's calls. Raises RuntimeError where that fails."""
    compiler = next(filter(None, map(shutil.which, ("gcc", "clang", "cc"))), None)
    if compiler is None:
        raise RuntimeError("a C compiler is needed: install gcc")
    program = folder / "calls"
    sources = [str(Path(__file__).parent / "calls.c"), str(SOURCES / "tunefarm.c")]
    command = [compiler, "-std=c11", "-O2", f"-I{bundle}", f"-I{bundle / 'include'}", *sources]
    command += [f"-L{bundle / 'lib'}", "-l:libtvm_ffi.so", "-ldl"]
    command += [f"-Wl,-rpath,{bundle / 'lib'}", "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"calls.c can't be compiled: {done.stderr[-500:]}")
    return program


def only_kernel(library: Path) -> str:
    """Return the symbol of a library's kernel. Raises RuntimeError unless there is exactly one."""
    listed = subprocess.run(["nm", "-D", str(library)], capture_output=True, text=True, check=True).stdout
    prefix = "__tvm_ffi_"
    found = [line.split()[-1] for line in listed.splitlines() if f" T {prefix}" in line]
    if len(found) != 1:
        raise RuntimeError(f"{library} has {len(found)} kernels instead of one")
    return found[0]


class Program:
    """A C program that times calls of a bundle in turns; with `kernel`, of that kernel alone."""

    def __init__(self, program: Path, bundle: Path, threads: int, calls: int, kernel: str = "") -> None:
        command = [str(program), str(bundle), str(threads), str(calls), *filter(None, [kernel])]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def time_block(self, block: Block) -> Sequence[float]:
        """Return the seconds of a call in each sample of one turn. Raises RuntimeError once the program has
        failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        try:
            self._process.stdin.write(f"{block.warm_up_s} {block.min_s}\n")
            self._process.stdin.flush()
        except OSError:
            pass  # it has said why
        answer = self._process.stdout.readline()
        if not answer.strip():
            raise RuntimeError(f"calls of C failed: {self._process.stderr.read().strip()}")
        return [float(word) for word in answer.split()]
