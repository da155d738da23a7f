"""PyTorch on a GPU, set up for speed: channels-last, cuDNN's fastest algorithms, CUDA graphs or
torch.compile, without TF32."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.operators.libraries import PEERS, TORCH, TorchConvolution, TorchMatmul
from benchmarks.suite import Shape
from benchmarks.timing.contestants import Arrays, Bind, ModelFile
from benchmarks.timing.interleaved import Block

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
                outputs = call()
                torch.cuda.synchronize()
                many = outputs if isinstance(outputs, list | tuple) else [outputs]
                return [one.cpu() for one in many]

            return synchronous

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
