"""PyTorch on a GPU, set up for speed: channels-last, cuDNN's fastest algorithms, CUDA graphs or
torch.compile, without TF32."""

from __future__ import annotations

import faulthandler
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.operators.libraries import PEERS, TORCH, TorchConvolution, TorchMatmul
from benchmarks.suite import Shape
from benchmarks.timing.contestants import Arrays, Bind, ModelFile
from benchmarks.timing.interleaved import Block
from core.job import TF32

GRAPHS, COMPILED = "PyTorch with CUDA graphs", "torch.compile (max-autotune)"
# Calls before a graph is captured, in which cuDNN chooses its algorithms.
WARM_UP_CALLS = 3
# The bytes that are written to flush the caches: more than any GPU's cache.
FLUSH_BYTES = 256 << 20


def missing() -> str:
    """Return why PyTorch isn't compared; "" if it is."""
    if importlib.util.find_spec("torch") is None:
        return "PyTorch is not installed"
    import torch

    return "" if torch.cuda.is_available() else "PyTorch is there, but its build shows no CUDA device"


def operator_peer(operator: str, shape: Shape) -> tuple[tuple[Shape, ...], ModelFile] | None:
    """Return the shapes of an operator's inputs, and the operator by PyTorch; None if it has none."""
    if operator not in PEERS:
        return None
    shapes, peers = PEERS[operator](shape)
    peer = peers[TORCH]
    assert isinstance(peer, TorchMatmul | TorchConvolution)
    return shapes, Graphed(replace(peer, device="cuda"))


@dataclass(frozen=True)
class Graphed:
    """An operator as a CUDA graph, without gaps between launches."""

    operator: ModelFile

    def load(self, threads: int) -> Bind:
        prepare()
        bind_operator = self.operator.load(threads)

        def bind(inputs: Arrays) -> Callable[[], Any]:
            return captured(bind_operator(inputs))

        return bind


@dataclass(frozen=True)
class TorchNetwork:
    """An ONNX file converted to a module by onnx2torch, `compiled` by torch.compile or run as a CUDA graph.
    Its products are computed in an `element_type`; a file in float16 is in that type already."""

    path: Path
    compiled: bool
    element_type: str = "float32"

    def load(self, threads: int) -> Bind:
        import onnx2torch
        import torch

        prepare(tf32=self.element_type == "tf32")
        module = onnx2torch.convert(str(self.path)).eval().cuda().to(memory_format=torch.channels_last)
        function = torch.compile(module, mode="max-autotune") if self.compiled else module

        def bind(inputs: Arrays) -> Callable[[], Any]:
            placed = [_placed(torch.from_numpy(array)) for array in inputs]

            def run() -> Any:
                return function(*placed)

            call = run if self.compiled else captured(run)

            def synchronous() -> Any:
                outputs = call()  # which stay on the GPU, as ours do
                torch.cuda.synchronize()
                return outputs

            return synchronous

        return bind


@dataclass(frozen=True)
class TorchProduct:
    """A product of two square matrices by cuBLAS, which PyTorch calls, as a CUDA graph. float32 is multiplied
    in TF32."""

    element_type: str
    side: int

    def load(self, _threads: int) -> Bind:
        import torch

        prepare(tf32=self.element_type == TF32)
        dtype = torch.float32 if self.element_type == TF32 else getattr(torch, self.element_type)

        def bind(_inputs: Arrays) -> Callable[[], Any]:
            a, b = (torch.randn(self.side, self.side, device="cuda").to(dtype) for _ in range(2))
            return captured(lambda: torch.matmul(a, b))

        return bind


@dataclass(frozen=True)
class LimitedLoad:
    """A model whose process ends if it isn't loaded and called once after `limit_s` seconds."""

    model: ModelFile
    limit_s: float

    def load(self, threads: int) -> Bind:
        # A watchdog thread ends the process, whatever a compiler does.
        quiet = Path(os.devnull).open("w")  # noqa: SIM115 - the watchdog keeps it
        faulthandler.dump_traceback_later(self.limit_s, exit=True, file=quiet)
        bind_model = self.model.load(threads)

        def bind(inputs: Arrays) -> Callable[[], Any]:
            call = bind_model(inputs)
            call()  # a model may be compiled by its first call
            faulthandler.cancel_dump_traceback_later()
            return call

        return bind


def prepare(tf32: bool = False) -> None:
    """Configure PyTorch for its best speed, with or without TF32."""
    import torch

    torch.set_grad_enabled(False)
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = True


def captured(call: Callable[[], Any]) -> Callable[[], Any]:
    """Return a call that replays another one, which was captured as a CUDA graph."""
    import torch

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(WARM_UP_CALLS):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = call()

    def replay() -> Any:
        graph.replay()
        return outputs

    return replay


def time_by_events(call: Callable[[], object], block: Block) -> tuple[float, ...]:
    """Time the turn of an operator as the worker times ours: by CUDA's events, with flushed caches."""
    import torch

    source, target = (torch.zeros(FLUSH_BYTES, dtype=torch.uint8, device="cuda") for _ in range(2))
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    secs: list[float] = []
    while len(secs) < block.min_calls or (sum(secs) < block.min_s and len(secs) < block.max_calls):
        target.copy_(source)
        begin.record()
        call()
        end.record()
        end.synchronize()
        secs.append(begin.elapsed_time(end) / 1e3)
    return tuple(secs)


def _placed(tensor: Any) -> Any:
    import torch

    placed = tensor.cuda()
    return placed.contiguous(memory_format=torch.channels_last) if placed.dim() == 4 else placed
