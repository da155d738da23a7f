"""Libraries that compute single operators: NumPy (OpenBLAS) and, if installed, PyTorch (oneDNN) and
Halide."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.operators.halide_peers import HalideConv2d, HalideMatmul
from benchmarks.suite import OPERATORS, Shape
from benchmarks.timing.contestants import Arrays, Bind, ModelFile, ProcessContestant
from benchmarks.timing.deviation import random_inputs
from benchmarks.timing.interleaved import Block, Contestant, Timings, measure

# Variables that the libraries read when they are loaded.
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
NUMPY, TORCH, HALIDE = "numpy", "PyTorch", "Halide"
OURS = "ours"


@dataclass(frozen=True)
class Compared:
    """Our program and the installed libraries at one shape, timed in turns. `missing` has the names of
    missing libraries."""

    shape: Shape
    ours: Timings
    theirs: Mapping[str, Timings]
    missing: tuple[str, ...] = ()

    @property
    def fastest(self) -> str:
        return min(self.theirs, key=lambda name: self.theirs[name].latency_s.value)


class NumpyMatmul:
    """The product of two matrices by numpy, into an array that is allocated once."""

    def load(self, _threads: int) -> Bind:
        def bind(inputs: Arrays) -> Callable[[], Any]:
            a, b = inputs
            result = np.empty((a.shape[0], b.shape[1]), a.dtype)
            return lambda: np.matmul(a, b, out=result)

        return bind


@dataclass(frozen=True)
class TorchMatmul:
    """The product of two matrices by PyTorch."""

    device: str = "cpu"

    def load(self, threads: int) -> Bind:
        import torch

        torch.set_num_threads(threads)

        def bind(inputs: Arrays) -> Callable[[], Any]:
            a, b = (torch.from_numpy(array).to(self.device) for array in inputs)
            result = torch.empty((a.shape[0], b.shape[1]), device=self.device)
            return lambda: torch.matmul(a, b, out=result)

        return bind


@dataclass(frozen=True)
class TorchConvolution:
    """A convolution over `dims` axes by PyTorch, channels-last if PyTorch supports it."""

    dims: int
    stride: int
    padding: int
    dilation: int = 1
    groups: int = 1
    transposed: bool = False
    device: str = "cpu"

    def load(self, threads: int) -> Bind:
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        formats = {2: torch.channels_last, 3: torch.channels_last_3d}
        order = formats.get(self.dims, torch.contiguous_format)
        kind = "conv_transpose" if self.transposed else "conv"
        convolve = getattr(torch.nn.functional, f"{kind}{self.dims}d")
        given = {name: getattr(self, name) for name in ("stride", "padding", "dilation", "groups")}

        def bind(inputs: Arrays) -> Callable[[], Any]:
            data, weight = (
                torch.from_numpy(array).to(self.device).contiguous(memory_format=order) for array in inputs
            )
            return lambda: convolve(data, weight, **given)

        return bind


# Shapes of the inputs, and the libraries that compute an operator.
Peers = tuple[tuple[Shape, ...], Mapping[str, ModelFile]]


def _matmul(shape: Shape) -> Peers:
    rows, columns, terms = shape
    peers: Mapping[str, ModelFile] = {NUMPY: NumpyMatmul(), TORCH: TorchMatmul(), HALIDE: HalideMatmul()}
    return ((rows, terms), (terms, columns)), peers


def _conv2d(shape: Shape) -> Peers:
    """Return PyTorch and, at the benchmark shape only, Halide, which takes minutes to schedule a
    convolution."""
    given, peers = _convolution(2)(shape)
    if shape != OPERATORS["C2D"].benchmark:
        return given, peers
    stride, padding = shape[-2:]
    return given, {**peers, HALIDE: HalideConv2d(stride, padding)}


def _convolution(dims: int) -> Callable[[Shape], Peers]:
    """Return the peers of shapes (*image, channels in and out, kernel, stride, padding, dilation, groups)."""

    def peers(shape: Shape) -> Peers:
        channels, filters, kernel, stride, padding, *rest = shape[dims:]
        dilation, groups = (*rest, 1, 1)[:2]
        weight = (filters, channels // groups, *[kernel] * dims)
        torch = TorchConvolution(dims, stride, padding, dilation, groups)
        return ((1, channels, *shape[:dims]), weight), {TORCH: torch}

    return peers


def _depthwise(shape: Shape) -> Peers:
    height, width, channels, kernel, stride, padding = shape
    torch = TorchConvolution(2, stride, padding, groups=channels)
    return ((1, channels, height, width), (channels, 1, kernel, kernel)), {TORCH: torch}


def _transposed(shape: Shape) -> Peers:
    height, width, channels, filters, kernel, stride, padding = shape
    torch = TorchConvolution(2, stride, padding, transposed=True)
    return ((1, channels, height, width), (channels, filters, kernel, kernel)), {TORCH: torch}


PEERS: Mapping[str, Callable[[Shape], Peers]] = {
    "C1D": _convolution(1),
    "C2D": _conv2d,
    "C3D": _convolution(3),
    "GMM": _matmul,
    "GRP": _convolution(2),
    "DIL": _convolution(2),
    "DEP": _depthwise,
    "T2D": _transposed,
}
# Operators compared at all four shapes; the others are compared at the benchmark shape.
EVERY_SHAPE = ("GMM", "C2D")
MODULES = {NUMPY: "numpy", TORCH: "torch", HALIDE: "halide"}


def missing() -> list[str]:
    """Return the libraries that are not installed."""
    return [name for name, module in MODULES.items() if importlib.util.find_spec(module) is None]


def compare(operator: str, shape: Shape, ours: Contestant, threads: int, rounds: int) -> Compared | None:
    """Time our program and the installed libraries in turns. Return None if no library computes the
    operator."""
    if operator not in PEERS:
        return None
    given, peers = PEERS[operator](shape)
    inputs = random_inputs([(each, "float32") for each in given], seed=0)
    absent = [name for name in missing() if name in peers]
    with _thread_variables(threads), ExitStack() as processes:
        contestants = {
            name: processes.enter_context(ProcessContestant(peer, threads, inputs))
            for name, peer in peers.items()
            if name not in absent
        }
        if not contestants:
            return None
        timings = measure({OURS: ours, **contestants}, rounds, Block(min_s=0.2))
    return Compared(shape, timings.pop(OURS), timings, tuple(absent))


@contextmanager
def _thread_variables(threads: int) -> Iterator[None]:
    """Limit the threads of libraries in processes that start in this context."""
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update(dict.fromkeys(THREADS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
