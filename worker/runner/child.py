"""The child: the process that candidates run in. It may crash, hang or be killed; the agent goes on.

    python -m worker.runner.child --kind KIND --parent PID --runner MODULE:NAME --threads N --user NAME
        [--without NAME ...] [--readable PATH ...] [--writable PATH ...]

KIND is the name of one of `sandbox.kinds`. This command becomes the reaper of the child (`sandbox`). The
child is sandboxed as far as this machine allows. If the agent is root, the child runs as the user NAME.
TMPDIR is the child's own folder. The child sees the given paths, the files of Python and of the compiler, and
no others.

Requests arrive as frames on standard input, and replies leave on standard output. At the start, both are
moved to descriptors that candidates can't find. A candidate's output goes to standard error.

The first reply is sent once the runner has passed its check. Then each request gets its replies.
`proto/child.proto` specifies the messages. The child exits when its input ends.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import sys
import threading
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from core.instruction_sets import FeatureError
from proto.child_pb2 import BuildCandidates, ChildReply, ChildRequest, RefusedCandidates
from proto.convert import clean_text
from sandbox import containment, limits
from sandbox.kinds import BUILD, MEASURE, MEASURE_GPU
from worker.runner import child_messages, frames
from worker.runner.interface import Platforms, Runner, RunnerFactory

MAX_TRACEBACK_CHARS = 4000
CHILD_KINDS = {kind.name: kind for kind in (MEASURE, MEASURE_GPU, BUILD)}


class ChildServer:
    """Answers the agent's requests in order with a runner."""

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
        """Serve until the requests end. Raises any exception of the runner's check."""
        device = self._runner.check()
        platforms = self._runner.platforms() if self._builds else Platforms(())
        first = child_messages.ready_to_wire(device, self._sandbox_gaps, platforms)
        # Measured after the check, which has started the thread pools. Their stacks grow with the number of
        # cores.
        self._baseline_bytes = limits.data_bytes()
        self._reply(first)
        while (body := frames.read(self._requests)) is not None:
            self._reply(self._answer(ChildRequest.FromString(body)))

    def _answer(self, request: ChildRequest) -> ChildReply:
        """Return the last reply to a request."""
        try:
            if self._baseline_bytes:
                limits.limit_memory(request.memory_bytes, self._baseline_bytes)
            limits.limit_cpu(request.cpu_s)
            match request.WhichOneof("work"):
                case "build":
                    reply = self._build(request.build)
                case "export":
                    reply = child_messages.export_to_wire(self._runner.export(request.export))
                case "calibrate_budget_s":
                    profile = self._runner.calibrate(request.calibrate_budget_s)
                    reply = ChildReply(profile=profile.to_json())
                case "run":
                    best_s = request.run.best_s if request.run.HasField("best_s") else None
                    measurement = self._runner.run(request.run.number, best_s)
                    reply = child_messages.measurement_to_wire(measurement)
                case "measure_module":
                    with Path(request.measure_module.path).open("rb") as artifact:
                        measurement = self._runner.measure_module(artifact, request.measure_module.compare)
                    reply = child_messages.measurement_to_wire(measurement)
                case "call_module":
                    with Path(request.call_module.path).open("rb") as artifact:
                        calls = self._runner.call_module(artifact, request.call_module.seconds)
                    reply = child_messages.calls_to_wire(calls)
                case "infer_path":
                    with Path(request.infer_path).open("rb") as packed:
                        reply = child_messages.inferred_to_wire(self._runner.infer(packed))
                case "measure_onnx":
                    with Path(request.measure_onnx.path).open("rb") as model:
                        measurement = self._runner.measure_onnx(model, request.measure_onnx.shapes)
                    reply = child_messages.measurement_to_wire(measurement)
                case unknown:
                    raise ValueError(f"there is no request {unknown!r}")
        except Exception:
            # Any exception is sent to the agent: the candidate fails, and the agent replaces this process.
            return ChildReply(failed=clean_text(traceback.format_exc()[-MAX_TRACEBACK_CHARS:]))
        reply.grown_bytes = max(limits.data_bytes() - self._baseline_bytes, 0)
        return reply

    def _build(self, request: BuildCandidates) -> ChildReply:
        refused = self._runner.build(
            {one.number: child_messages.build_from_wire(one) for one in request.candidates},
            begun=lambda number: self._reply(ChildReply(begun=number)),
            ended=lambda number: self._reply(ChildReply(ended=number)),
        )
        return ChildReply(refused=RefusedCandidates(numbers=refused))

    def _reply(self, reply: ChildReply) -> None:
        with self._reply_lock:  # builders reply from their own threads
            self._replies.write(frames.encode(reply.SerializeToString()))
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
    gc.disable()
    factory: RunnerFactory = getattr(importlib.import_module(module), name)
    gc.freeze()  # imported objects stay
    gc.enable()
    try:
        runner = factory(given.threads, given.without)
    except FeatureError as error:
        replies.write(frames.encode(ChildReply(unusable=clean_text(str(error))).SerializeToString()))
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
