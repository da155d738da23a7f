"""The process that candidates run in: it may crash, hang or be killed, the agent goes on.

    python -m worker.child --parent PID --bench MODULE:NAME --threads N

Requests come in as frames on standard input, replies go out on standard output; both are moved out of a
candidate's reach before anything else happens, and what is printed goes to standard error. The first
reply is `{"device": ...}` once the bench has passed its check. A request
`{"do": "measure" | "measure_module", "memory_bytes": ..., ...}` is answered by `{"phase": ...}` when the
phase changes and at last by `{"measurement": ..., "grown_bytes": ...}`, or by `{"failed": ...}` when the
bench itself raised. The process ends when its input does.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from search.measurement import Measurement
from worker import confine, frames
from worker.bench import Bench, BenchFactory, Phase

MAX_TRACEBACK_CHARS = 4000


class Child:
    """Serves requests until there are no more."""

    def __init__(self, bench: Bench, requests: BinaryIO, replies: BinaryIO) -> None:
        self._bench = bench
        self._requests = requests
        self._replies = replies
        self._baseline_bytes = 0

    def serve(self) -> None:
        """Raises what the bench's check raises: then this process is of no use."""
        device = self._bench.check()
        # Only now do the thread pool's stacks exist, which grow with the number of cores.
        self._baseline_bytes = confine.address_bytes()
        self._reply({"device": device.to_json()})
        while (request := frames.read(self._requests)) is not None:
            self._reply(self._answer(request))

    def _answer(self, request: frames.Message) -> frames.Message:
        try:
            if self._baseline_bytes:
                confine.limit_memory(self._baseline_bytes + request["memory_bytes"])
            measurement = self._measure(request)
        except Exception:
            # Whatever it was, the agent decides: it replaces this process and the candidate has failed.
            return {"failed": traceback.format_exc()[-MAX_TRACEBACK_CHARS:]}
        return {
            "measurement": frames.from_measurement(measurement),
            "grown_bytes": max(confine.address_bytes() - self._baseline_bytes, 0),
        }

    def _measure(self, request: frames.Message) -> Measurement:
        if request["do"] == "measure_module":
            return self._bench.measure_module(Path(request["path"]).read_bytes())
        subject, *ahead = (frames.to_subject(data) for data in request["subjects"])
        return self._bench.measure(subject, ahead, self._entered)

    def _entered(self, phase: Phase) -> None:
        self._reply({"phase": phase.value})

    def _reply(self, message: frames.Message) -> None:
        self._replies.write(frames.encode(message))
        self._replies.flush()


def main(arguments: Sequence[str]) -> None:
    """Ends with an error message on standard error when the bench can't be used."""
    requests, replies = _take_pipes()
    parser = argparse.ArgumentParser(prog="python -m worker.child")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--bench", required=True)
    parser.add_argument("--threads", type=int, required=True)
    given = parser.parse_args(arguments)
    confine.die_with_parent(given.parent)
    confine.limit_files()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Child(_factory(given.bench)(given.threads), requests, replies).serve()


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Standard input and output under other numbers, not inherited by anything that is started here."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, replies


def _factory(name: str) -> BenchFactory:
    module, _, attribute = name.partition(":")
    factory: BenchFactory = getattr(importlib.import_module(module), attribute)
    return factory


if __name__ == "__main__":
    main(sys.argv[1:])
