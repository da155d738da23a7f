"""Runtimes to compare. Each loads its model in its own process, so they share no threads."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
import tunefarm_runtime
from numpy.typing import NDArray
from tunefarm_runtime.manifest import Cache

Arrays = Mapping[str, NDArray[Any]]
Call = Callable[[], object]
# Seconds without a reply after which a process counts as hanging.
ANSWER_TIMEOUT_S = 600.0


class ContestantError(RuntimeError):
    """A runtime can't load or run the model. The message says which one, and why."""


class Runtime(Protocol):
    """A model for one runtime. It is sent to the process that runs it."""

    @property
    def name(self) -> str: ...
    @property
    def path(self) -> Path: ...
    def load(self, threads: int, inputs: Arrays) -> Call:
        """Load the model and return a call of it on these inputs."""


@dataclass(frozen=True)
class CompiledModel:
    """The folder of a compiled model."""

    path: Path
    name: str = "tunefarm"

    def load(self, threads: int, inputs: Arrays) -> Call:
        model = tunefarm_runtime.load(self.path, threads=threads)
        if model.cache is not None:
            return _last_step(model, model.cache, inputs)
        values = [aligned(inputs[one.name]) for one in model.inputs]
        return lambda: model.to_numpy(model(*values))


def _last_step(model: tunefarm_runtime.Model, cache: Cache, inputs: Arrays) -> Call:
    """Return a function that runs the last step that fits the cache of a decoder's smallest size."""
    held = {one.name for one in model.inputs} - {cache.position, *cache.buffers, *cache.tokens}
    model.reset(**{name: inputs[name] for name in held})
    ((name, axis),) = cache.tokens.items()
    before, tokens = int(inputs[cache.position][0]), inputs[name]
    model.step(np.take(tokens, np.arange(before) % cache.count, axis))

    def call() -> object:
        model.rewind(before)
        return model.step(tokens)

    return call


@dataclass(frozen=True)
class OnnxRuntime:
    """An ONNX file for ONNX Runtime's CPU provider with all optimizations."""

    path: Path
    name: str = "ONNX Runtime"

    def load(self, threads: int, inputs: Arrays) -> Call:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        session = onnxruntime.InferenceSession(str(self.path), options, providers=["CPUExecutionProvider"])
        feed = {one.name: inputs[one.name] for one in session.get_inputs()}
        return lambda: session.run(None, feed)


@dataclass(frozen=True)
class OpenVino:
    """An ONNX file for OpenVINO's CPU plugin with its latency hint, in the model's own element types."""

    path: Path
    name: str = "OpenVINO"

    def load(self, threads: int, inputs: Arrays) -> Call:
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]  # its import would send telemetry
        import openvino

        config = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        core = openvino.Core()
        model = core.read_model(str(self.path))
        model.reshape({port: list(inputs[port.get_any_name()].shape) for port in model.inputs})
        request = core.compile_model(model, "CPU", config).create_infer_request()
        for port in model.inputs:
            request.set_tensor(port.get_any_name(), openvino.Tensor(inputs[port.get_any_name()]))
        return lambda: request.infer(share_outputs=True)


@dataclass(frozen=True)
class PyTorch:
    """A PyTorch exported program, run by PyTorch."""

    path: Path
    name: str = "PyTorch"

    def load(self, threads: int, inputs: Arrays) -> Call:
        import torch

        torch.set_num_threads(threads)
        program = torch.export.load(self.path)
        module = program.module()
        # Buffers that the program writes are inputs of the compiled model only.
        tensors = [torch.from_numpy(inputs[name]) for name in program.graph_signature.user_inputs]

        def call() -> object:
            with torch.inference_mode():
                return module(*tensors)

        return call


def peers_of(model: Path) -> list[Runtime]:
    """Return the installed runtimes that read the format of a model's file, given its suffix."""
    known: dict[str, list[tuple[str, Callable[[Path], Runtime]]]] = {
        ".onnx": [("onnxruntime", OnnxRuntime), ("openvino", OpenVino)],
        ".pt2": [("torch", PyTorch)],
    }
    return [
        make(model)
        for package, make in known.get(model.suffix, [])
        if importlib.util.find_spec(package) is not None
    ]


class Contestant:
    """A runtime that has loaded the model in a separate process. Errors there raise ContestantError."""

    def __init__(self, runtime: Runtime, threads: int, inputs: Arrays) -> None:
        self._name = runtime.name
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, runtime, threads, inputs), daemon=True)
        self._process.start()
        theirs.close()
        try:
            self.load_s: float = self._answer()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def time_calls(self, seconds: float) -> Sequence[float]:
        """Time a turn of about `seconds`, at least three calls. Return the seconds of each call."""
        secs: list[float] = self._ask(seconds)
        return secs

    def peak_bytes(self) -> int:
        """Return the process's peak resident memory in bytes."""
        return int(self._ask(None))

    def close(self) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _ask(self, request: float | None) -> Any:
        try:
            self._pipe.send(request)
        except OSError as error:
            raise ContestantError(f"{self._name}: its process has ended") from error
        return self._answer()

    def _answer(self) -> Any:
        try:
            if not self._pipe.poll(ANSWER_TIMEOUT_S):
                raise ContestantError(f"{self._name} gave no answer in {ANSWER_TIMEOUT_S:.0f} s")
            answer = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(5)
            raise ContestantError(
                f"{self._name}: its process has ended with exit code {self._process.exitcode}"
            ) from error
        if isinstance(answer, str):
            raise ContestantError(f"{self._name} can't run the model: {answer}")
        return answer


def _serve(pipe: Connection, runtime: Runtime, threads: int, inputs: Arrays) -> None:
    """Load the model, then reply to requests. A number requests a turn of that many seconds; None requests
    the peak memory."""
    os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(threads)
    begin = time.perf_counter()
    try:
        call = runtime.load(threads, inputs)
        pipe.send(time.perf_counter() - begin)
        for _ in range(3):
            call()
        while True:
            request = pipe.recv()
            if request is None:
                pipe.send(_peak_bytes())
            else:
                pipe.send(_turn(call, request))
    except EOFError:
        return
    except Exception as error:  # each runtime has its own exceptions
        pipe.send((str(error).strip().splitlines() or [type(error).__name__])[0][:300])


def _peak_bytes() -> int:
    """Return this process's peak resident memory in bytes. `getrusage` would include the parent's before the
    exec."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) << 10
    return 0


def _turn(call: Call, seconds: float) -> list[float]:
    call()  # one call first, because other runtimes have used the caches
    secs: list[float] = []
    end = time.perf_counter() + seconds
    while len(secs) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        call()
        secs.append(time.perf_counter() - begin)
    return secs


def aligned(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy whose address is a multiple of 64, as in a program written for speed."""
    buffer = np.empty(array.nbytes + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    copy = buffer[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
