"""Contestants: compiled models, ONNX Runtime and OpenVINO, each loaded in its own process."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing.cpu_masking import MaskedPackage
from benchmarks.timing.interleaved import Block, time_calls
from tunefarm.comparison.contestants import aligned

Arrays = Sequence[NDArray[Any]]
# Binds inputs; the call that it returns only runs the model, and returns the outputs in the runtime's own
# type.
Bind = Callable[[Arrays], Callable[[], Any]]

# Times one turn of a call.
Timer = Callable[[Callable[[], object], Block], tuple[float, ...]]


class ModelFile(Protocol):
    """A model that the process which times it can load."""

    def load(self, threads: int) -> Bind: ...


@dataclass(frozen=True)
class TvmLibrary:
    """A shared library compiled from a Relax module, for the CPU or the first GPU."""

    path: Path
    gpu: bool = False

    def load(self, threads: int) -> Bind:
        os.environ["TVM_NUM_THREADS"] = str(threads)
        # As in the runtime, so that the next contestant's threads have the processors for themselves.
        os.environ["TVM_THREAD_POOL_SPIN_COUNT"] = "4000"
        import tvm
        from tvm import relax

        from compiler.packaging.cuda import load_cuda
        from compiler.packaging.weights import bind_weights

        if self.gpu:
            load_cuda()
        device = tvm.cuda(0) if self.gpu else tvm.cpu()
        machine = relax.VirtualMachine(tvm.runtime.load_module(str(self.path)), device)
        run = bind_weights(machine["main"], self.path)

        def bind(inputs: Arrays) -> Callable[[], Any]:
            placed = [tvm.runtime.tensor(array, device=device) for array in inputs]

            def call() -> Any:
                outputs = run(*placed)
                device.sync()
                return outputs

            return call

        return bind


@dataclass(frozen=True)
class Deployed:
    """A folder that `tunefarm tune` has written, as `tunefarm_runtime` runs it; inputs are aligned."""

    folder: Path

    def load(self, threads: int) -> Bind:
        from tunefarm_runtime import load

        model = load(self.folder, threads=threads)

        def bind(inputs: Arrays) -> Callable[[], Any]:
            placed = [aligned(array) for array in inputs]
            return lambda: model(*placed)

        return bind


@dataclass(frozen=True)
class OnnxFile:
    """An ONNX file for ONNX Runtime's CPU provider with all optimizations.

    With `masked`, it doesn't see all of the processor's instruction sets.
    """

    path: Path
    masked: MaskedPackage | None = None

    def load(self, threads: int) -> Bind:
        if self.masked is not None:
            self.masked.prepare()
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        session = onnxruntime.InferenceSession(str(self.path), options, providers=["CPUExecutionProvider"])
        if self.masked is not None:
            self.masked.check()
        names = [one.name for one in session.get_inputs()]

        def bind(inputs: Arrays) -> Callable[[], Any]:
            feed = dict(zip(names, inputs, strict=True))
            return lambda: session.run(None, feed)

        return bind


@dataclass(frozen=True)
class OpenVinoFile:
    """An ONNX file for OpenVINO's CPU plugin with its latency hint, computed in float32.

    With `masked`, it doesn't see all of the processor's instruction sets.
    """

    path: Path
    masked: MaskedPackage | None = None

    def load(self, threads: int) -> Bind:
        if self.masked is not None:
            self.masked.prepare()
        # Without this, its import sends telemetry and writes an identity into the user's home.
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
        import openvino

        config = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
        }
        compiled = openvino.Core().compile_model(str(self.path), "CPU", config)
        if self.masked is not None:
            self.masked.check()

        def bind(inputs: Arrays) -> Callable[[], Any]:
            request = compiled.create_infer_request()
            for port, array in zip(compiled.inputs, inputs, strict=True):
                request.set_tensor(port, openvino.Tensor(array))
            return lambda: list(request.infer(share_outputs=True).values())

        return bind


class ProcessContestant:
    """A model in a separate process, so that runtimes share neither threads nor memory.

    Exceptions while the model is loaded or run are raised here.
    """

    def __init__(self, model: ModelFile, threads: int, inputs: Arrays, timer: Timer = time_calls) -> None:
        """Load the model and bind `inputs`, with which it is timed by `timer`."""
        self._timer = timer
        self._executor = spawn_process()
        try:
            self._executor.submit(_load, model, threads, inputs).result()
        except BaseException:
            self._executor.shutdown()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._executor.shutdown()

    def time_block(self, block: Block) -> Sequence[float]:
        """Return the seconds of every timed call of one turn."""
        return self._executor.submit(_time_block, self._timer, block).result()

    def outputs(self, inputs: Arrays) -> list[NDArray[Any]]:
        """Return the model's outputs."""
        return self._executor.submit(_outputs, inputs).result()


def spawn_process() -> ProcessPoolExecutor:
    """Return an executor of one fresh process."""
    return ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))


@dataclass(frozen=True)
class _Loaded:
    bind: Bind
    call: Callable[[], Any]


_loaded: list[_Loaded] = []  # in the child, which serves one contestant


def _load(model: ModelFile, threads: int, inputs: Arrays) -> None:
    bind = model.load(threads)
    _loaded.append(_Loaded(bind, bind(inputs)))


def _time_block(timer: Timer, block: Block) -> tuple[float, ...]:
    return timer(_loaded[0].call, block)


def _outputs(inputs: Arrays) -> list[NDArray[Any]]:
    result = _loaded[0].bind(inputs)()
    many = [result] if hasattr(result, "numpy") else result  # TVM returns a single output without a list
    return [np.asarray(one.numpy() if hasattr(one, "numpy") else one) for one in many]
