"""The child: the process that candidates run in. It may crash, hang or be killed; the agent goes on.

    python -m worker.runner.child --kind KIND --parent PID --runner MODULE:NAME --threads N --user NAME
        [--without NAME ...] [--readable PATH ...] [--writable PATH ...]

KIND is the name of one of `sandbox.kinds`. This command becomes the reaper of the child (`sandbox`). The
child is sandboxed as far as this machine allows. If the agent is root, the child runs as the user NAME.
TMPDIR is the child's own folder; it sees the paths given, what Python and the compiler need, and no other
files.

Requests arrive as frames on standard input, replies leave on standard output. Both are moved out of a
candidate's reach before anything else happens; what a candidate prints goes to standard error.

The first reply comes once the runner has passed its check:

    {"device": ..., "sandbox_gaps": [SENTENCE, ...]}        restrictions that this machine doesn't allow
        a builder also has "platforms": {"names": [NAME, ...], "problems": [SENTENCE, ...]}
    {"unusable": SENTENCE}                          instead, when the machine lacks what --without names

Then each request, which also has "memory_bytes" and "cpu_s", gets its replies:

    {"do": "build", "requests": [{"number": ..., ...}, ...]}
        {"begun": NUMBER} and {"ended": NUMBER} for each, several at a time, then {"refused": [NUMBER, ...]}
    {"do": "run", "number": ..., "best_s": ...}, {"do": "measure_module", "path": ..., "compare": ...}
        or {"do": "measure_onnx", "path": ..., "shapes": JSON}
        {"measurement": ..., "grown_bytes": ...}
    {"do": "calibrate", "budget_s": ...}
        {"profile": JSON, "grown_bytes": ...}
    {"do": "export", "number": ...}
        {"library": BASE64, "build_s": ..., "grown_bytes": ...}, or a measurement when it failed to build

When the runner raises, the last reply is `{"failed": TRACEBACK}`. The child ends when its input ends.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from core.instruction_sets import FeatureError
from sandbox import containment, limits
from sandbox.kinds import BUILD, MEASURE, MEASURE_GPU
from worker.runner import child_messages, frames
from worker.runner.interface import Runner, RunnerFactory

MAX_TRACEBACK_CHARS = 4000
CHILD_KINDS = {kind.name: kind for kind in (MEASURE, MEASURE_GPU, BUILD)}


class ChildServer:
    """Answers the agent's requests with a runner, one after the other."""

    def __init__(
        self,
        runner: Runner,
        requests: BinaryIO,
        replies: BinaryIO,
        sandbox_gaps: Sequence[str],
        builds: bool = False,
    ) -> None:
        self._runner = runner
        self._builds = builds
        self._requests = requests
        self._replies = replies
        self._sandbox_gaps = sandbox_gaps
        self._reply_lock = threading.Lock()
        self._baseline_bytes = 0

    def serve(self) -> None:
        """Serve until the requests end. Raises what the runner's check raises."""
        first: frames.Message = {
            "device": self._runner.check().to_json(),
            "sandbox_gaps": list(self._sandbox_gaps),
        }
        if self._builds:
            first["platforms"] = child_messages.encode_platforms(self._runner.platforms())
        # Taken only now: the check has started the thread pools, whose stacks grow with the number of cores.
        self._baseline_bytes = limits.data_bytes()
        self._reply(first)
        while (request := frames.read(self._requests)) is not None:
            self._reply(self._answer(request))

    def _answer(self, request: frames.Message) -> frames.Message:
        """Return the last reply to a request."""
        try:
            if self._baseline_bytes:
                limits.limit_memory(request["memory_bytes"], self._baseline_bytes)
            limits.limit_cpu(request["cpu_s"])
            answer: frames.Message
            match request["do"]:
                case "build":
                    refused = self._runner.build(
                        {
                            one["number"]: child_messages.decode_build_request(one)
                            for one in request["requests"]
                        },
                        begun=lambda number: self._reply({"begun": number}),
                        ended=lambda number: self._reply({"ended": number}),
                    )
                    return {"refused": list(refused)}
                case "export":
                    answer = child_messages.encode_export(self._runner.export(request["number"]))
                case "calibrate":
                    answer = {"profile": self._runner.calibrate(request["budget_s"]).to_json()}
                case "run":
                    measurement = self._runner.run(request["number"], request["best_s"])
                    answer = {"measurement": child_messages.encode_measurement(measurement)}
                case "measure_module":
                    with Path(request["path"]).open("rb") as artifact:
                        measurement = self._runner.measure_module(artifact, request["compare"])
                    answer = {"measurement": child_messages.encode_measurement(measurement)}
                case "measure_onnx":
                    with Path(request["path"]).open("rb") as model:
                        measurement = self._runner.measure_onnx(model, request["shapes"])
                    answer = {"measurement": child_messages.encode_measurement(measurement)}
                case unknown:
                    raise ValueError(f"there is no request {unknown!r}")
        except Exception:
            # The agent decides about any exception: the candidate fails, and this process is replaced.
            return {"failed": traceback.format_exc()[-MAX_TRACEBACK_CHARS:]}
        return answer | {"grown_bytes": max(limits.data_bytes() - self._baseline_bytes, 0)}

    def _reply(self, message: frames.Message) -> None:
        with self._reply_lock:  # builders reply from threads of their own
            self._replies.write(frames.encode(message))
            self._replies.flush()


def main(arguments: Sequence[str]) -> None:
    """Exit with an error message on standard error when the runner can't be used."""
    parser = argparse.ArgumentParser(prog="python -m worker.runner.child")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--runner", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--without", nargs="+", default=[])
    parser.add_argument("--user", required=True)
    parser.add_argument("--kind", choices=CHILD_KINDS, required=True)
    parser.add_argument("--readable", nargs="+", type=Path, default=[])
    parser.add_argument("--writable", nargs="+", type=Path, default=[])
    given = parser.parse_args(arguments)
    kind, scratch = CHILD_KINDS[given.kind], Path(os.environ["TMPDIR"])
    gaps = containment.enter(kind, given.parent, given.user, scratch, given.readable, given.writable)
    requests, replies = _take_pipes()
    module, _, name = given.runner.partition(":")
    factory: RunnerFactory = getattr(importlib.import_module(module), name)
    try:
        runner = factory(given.threads, given.without)
    except FeatureError as error:
        replies.write(frames.encode({"unusable": str(error)}))
        replies.flush()
        return
    ChildServer(runner, requests, replies, gaps, kind is BUILD).serve()


def _take_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Move standard input and output to other descriptors, which programs started here don't inherit."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return requests, replies


if __name__ == "__main__":
    main(sys.argv[1:])
