"""The process that candidates run in: it may crash, hang or be killed, the agent goes on.

    python -m worker.runner.child --parent PID --runner MODULE:NAME --threads N [--user NAME] [--build]
        [--without NAME ...]

What is started so becomes the reaper (`worker.sandbox.reaper`) of the process that serves, which is contained
as far as this machine allows, and belongs to the user NAME where the agent is root. TMPDIR is its own folder.

Requests come in as frames on standard input, replies go out on standard output; both are moved out of a
candidate's reach before anything else happens, and what is printed goes to standard error. The first
reply is `{"device": ..., "gaps": [SENTENCE, ...]}` once the runner has passed its check; the gaps are what is
not contained; `{"unusable": SENTENCE}` instead of it, when this machine can't do --without what it lacks
anyway. With --build it has `"machines": {"names": [NAME, ...], "problems": [SENTENCE, ...]}` too, for
which it exports candidates. The requests, each with "memory_bytes" and "cpu_s" too, and their answers:

    {"do": "build", "subjects": [{"number": ..., ...}, ...]}
        {"begun": NUMBER} and {"ended": NUMBER} for each, several at a time, then {"refused": [NUMBER, ...]}
    {"do": "run", "number": ..., "best_s": ...} or {"do": "measure_module", "path": ..., "compare": ...}
        {"measurement": ..., "grown_bytes": ...}
    {"do": "calibrate", "budget_s": ...}
        {"profile": JSON, "grown_bytes": ...}
    {"do": "export", "number": ...}
        {"library": BASE64, "build_secs": ..., "grown_bytes": ...}, or as above of one that was refused

When the runner itself raised, the last answer is `{"failed": ...}`. The process ends when its input does.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from core.instruction_sets import FeatureError
from core.measurement import Measurement
from worker.runner.interface import Runner, RunnerFactory
from worker.sandbox import frames, isolation, reaper

MAX_TRACEBACK_CHARS = 4000


class Child:
    """Serves requests until there are no more."""

    def __init__(
        self, runner: Runner, requests: BinaryIO, replies: BinaryIO, gaps: Sequence[str], builds: bool = False
    ) -> None:
        self._runner = runner
        self._builds = builds
        self._requests = requests
        self._replies = replies
        self._gaps = gaps
        self._replying = threading.Lock()
        self._baseline_bytes = 0

    def serve(self) -> None:
        """Raises what the runner's check raises: then this process is of no use."""
        first: frames.Message = {"device": self._runner.check().to_json(), "gaps": list(self._gaps)}
        if self._builds:
            first["machines"] = frames.from_machines(self._runner.machines())
        # Only now do the thread pool's stacks exist, which grow with the number of cores.
        self._baseline_bytes = isolation.address_bytes()
        self._reply(first)
        while (request := frames.read(self._requests)) is not None:
            self._reply(self._answer(request))

    def _answer(self, request: frames.Message) -> frames.Message:
        try:
            if self._baseline_bytes:
                isolation.limit_memory(self._baseline_bytes + request["memory_bytes"])
            isolation.limit_cpu(request["cpu_s"])
            if request["do"] == "build":
                return {"refused": self._build(request)}
            answer: frames.Message
            if request["do"] == "export":
                answer = frames.from_export(self._runner.export(request["number"]))
            elif request["do"] == "calibrate":
                answer = {"profile": self._runner.calibrate(request["budget_s"]).to_json()}
            else:
                answer = {"measurement": frames.from_measurement(self._measure(request))}
        except Exception:
            # Whatever it was, the agent decides: it replaces this process and the candidate has failed.
            return {"failed": traceback.format_exc()[-MAX_TRACEBACK_CHARS:]}
        return answer | {"grown_bytes": max(isolation.address_bytes() - self._baseline_bytes, 0)}

    def _build(self, request: frames.Message) -> list[int]:
        subjects = {data["number"]: frames.to_build_request(data) for data in request["subjects"]}
        refused = self._runner.build(
            subjects,
            begun=lambda number: self._reply({"begun": number}),
            ended=lambda number: self._reply({"ended": number}),
        )
        return list(refused)

    def _measure(self, request: frames.Message) -> Measurement:
        if request["do"] == "run":
            return self._runner.run(request["number"], request["best_s"])
        return self._runner.measure_module(Path(request["path"]).read_bytes(), request["compare"])

    def _reply(self, message: frames.Message) -> None:
        """From any thread."""
        with self._replying:
            self._replies.write(frames.encode(message))
            self._replies.flush()


def main(arguments: Sequence[str]) -> None:
    """Ends with an error message on standard error when the runner can't be used."""
    parser = argparse.ArgumentParser(prog="python -m worker.runner.child")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--runner", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--without", nargs="+", default=[])
    parser.add_argument("--user")
    parser.add_argument("--build", action="store_true")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gaps = reaper.enter_sandbox(given.parent, given.user, Path(os.environ["TMPDIR"]))
    requests, replies = _take_pipes()
    try:
        runner = _factory(given.runner)(given.threads, given.without)
    except FeatureError as error:
        replies.write(frames.encode({"unusable": str(error)}))
        replies.flush()
        return
    Child(runner, requests, replies, gaps, given.build).serve()


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Standard input and output under other numbers, not inherited by anything that is started here."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, replies


def _factory(name: str) -> RunnerFactory:
    module, _, attribute = name.partition(":")
    factory: RunnerFactory = getattr(importlib.import_module(module), attribute)
    return factory


if __name__ == "__main__":
    main(sys.argv[1:])
