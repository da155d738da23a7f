"""Send invalid models to the ONNX importer in a separate process."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import IO

from tests.faults.rig import ROOT
from tests.fuzz.failures import Failures
from tests.fuzz.import_child import HEADER
from tests.fuzz.models import files
from tunefarm.embedded.supervision import DIE_WITH_PARENT

KIND = "import"
# For hangs only: an import takes milliseconds, loading TVM seconds.
TIMEOUT_S, START_TIMEOUT_S = 120.0, 120.0
# TVM leaks some memory for each model, which must not accumulate.
FILES_OF_A_CHILD = 1000
# Fusing takes ten times as long as reading.
FUSED_EVERY = 8


@dataclass(frozen=True)
class Ending:
    """The end of an import (imported, refused, untyped ERROR, crashed SIGNAL, hung), with its message."""

    how: str
    words: str = ""
    peak_bytes: int = 0


class ImporterError(Exception):
    """The importing process can't be started. The message is one sentence for users."""


class Importer:
    """The importing process, which is replaced when it dies and after FILES_OF_A_CHILD files."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._imported = 0
        self._loaded_bytes = 0
        self.most_taken_bytes = 0

    def attempt(self, data: bytes, *, fuses: bool) -> Ending:
        """Import one file. Raises ImporterError when the process doesn't start."""
        if self._process is None or self._imported >= FILES_OF_A_CHILD:
            self._start()
        assert self._process is not None, "it was started"
        self._imported += 1
        ending = self._exchange(self._process, HEADER.pack(len(data), fuses) + data)
        if ending.peak_bytes:
            self.most_taken_bytes = max(self.most_taken_bytes, ending.peak_bytes - self._loaded_bytes)
        else:
            self.stop()
        return ending

    def stop(self) -> None:
        if self._process is not None:
            with suppress(BrokenPipeError), self._process as process:
                process.kill()
            self._process = None

    def _start(self) -> None:
        self.stop()
        self._process = subprocess.Popen(
            [*DIE_WITH_PARENT, sys.executable, "-P", "-m", "tests.fuzz.import_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TVM_NUM_THREADS": "1"},
        )
        self._imported = 0
        ready = self._answer(self._process, START_TIMEOUT_S)
        if ready.how != "ready":
            raise ImporterError(f"the importing process did not start: {ready.how} {ready.words}")
        self._loaded_bytes = ready.peak_bytes

    def _exchange(self, process: subprocess.Popen[bytes], request: bytes) -> Ending:
        try:
            _pipe(process.stdin).write(request)
            _pipe(process.stdin).flush()
        except BrokenPipeError:
            return self._died(process)
        return self._answer(process, TIMEOUT_S)

    def _answer(self, process: subprocess.Popen[bytes], timeout_s: float) -> Ending:
        line, deadline = b"", time.monotonic() + timeout_s
        output = _pipe(process.stdout).fileno()
        while not line.endswith(b"\n"):
            ready, _, _ = select.select([output], [], [], max(deadline - time.monotonic(), 0.0))
            if not ready:
                return Ending("hung")
            piece = os.read(output, 1 << 16)
            if not piece:
                return self._died(process)
            line += piece
        return Ending(**json.loads(line))

    def _died(self, process: subprocess.Popen[bytes]) -> Ending:
        status = process.wait(TIMEOUT_S)
        return Ending(f"crashed {signal.Signals(-status).name}" if status < 0 else f"crashed with {status}")


@contextmanager
def importing() -> Iterator[Importer]:
    importer = Importer()
    try:
        yield importer
    finally:
        importer.stop()


def send(importer: Importer, count: int, rng: Random, failures: Failures) -> Counter[str]:
    """Import `count` files. Return how many ended in each way. Raises ImporterError."""
    endings: Counter[str] = Counter()
    source = files(rng)
    for number in range(count):
        data = next(source)
        ending = importer.attempt(data, fuses=number % FUSED_EVERY == 0)
        endings[ending.how.partition(" ")[0]] += 1
        if ending.how not in ("imported", "refused"):
            failures.note(f"{KIND} {ending.how}", data)
    return endings


def _pipe(end: IO[bytes] | None) -> IO[bytes]:
    assert end is not None, "both are pipes"
    return end
