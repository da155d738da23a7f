"""Hand-written libraries as contestants: numpy (OpenBLAS) and, where it is installed, PyTorch (oneDNN)."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.agreement import random_inputs
from benchmarks.contestants import Arrays, Bind, ModelFile, ProcessContestant
from benchmarks.interleaved import Block, Contestant, Timings, measure
from benchmarks.suite import Shape

# Read by the libraries when they are loaded.
THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
NUMPY, TORCH = "numpy", "PyTorch"
OURS = "ours"


@dataclass(frozen=True)
class Compared:
    """One shape, timed in turns; `theirs` has the libraries that are installed, the others are `missing`."""

    shape: Shape
    ours: Timings
    theirs: Mapping[str, Timings]
    missing: tuple[str, ...] = ()

    @property
    def fastest(self) -> str:
        return min(self.theirs, key=lambda name: self.theirs[name].latency_s.value)


class NumpyMatmul:
    """A product of two matrices into a third."""

    def load(self, _threads: int) -> Bind:
        def bind(inputs: Arrays) -> Callable[[], Any]:
            a, b = inputs
            result = np.empty((a.shape[0], b.shape[1]), a.dtype)
            return lambda: np.matmul(a, b, out=result)

        return bind


class TorchMatmul:
    """The same by PyTorch."""

    def load(self, threads: int) -> Bind:
        import torch

        torch.set_num_threads(threads)

        def bind(inputs: Arrays) -> Callable[[], Any]:
            a, b = (torch.from_numpy(array) for array in inputs)
            result = torch.empty((a.shape[0], b.shape[1]))
            return lambda: torch.matmul(a, b, out=result)

        return bind


@dataclass(frozen=True)
class TorchConv2d:
    """A convolution, everything channels-last in memory."""

    stride: int
    padding: int

    def load(self, threads: int) -> Bind:
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)

        def bind(inputs: Arrays) -> Callable[[], Any]:
            data, weight = (
                torch.from_numpy(array).contiguous(memory_format=torch.channels_last) for array in inputs
            )
            return lambda: torch.nn.functional.conv2d(data, weight, stride=self.stride, padding=self.padding)

        return bind


# Shapes of the inputs and who computes them, by operator.
Peers = tuple[tuple[Shape, ...], Mapping[str, ModelFile]]


def _matmul(shape: Shape) -> Peers:
    rows, columns, terms = shape
    return ((rows, terms), (terms, columns)), {NUMPY: NumpyMatmul(), TORCH: TorchMatmul()}


def _conv2d(shape: Shape) -> Peers:
    height, width, channels, filters, kernel, stride, padding = shape
    given = ((1, channels, height, width), (filters, channels, kernel, kernel))
    return given, {TORCH: TorchConv2d(stride, padding)}


PEERS: Mapping[str, Callable[[Shape], Peers]] = {"GMM": _matmul, "C2D": _conv2d}
MODULES = {NUMPY: "numpy", TORCH: "torch"}


def missing() -> list[str]:
    """The libraries that are not installed."""
    return [name for name, module in MODULES.items() if importlib.util.find_spec(module) is None]


def compare(operator: str, shape: Shape, ours: Contestant, threads: int, rounds: int) -> Compared | None:
    """Times our program and the installed libraries' in turns; None when no library computes this."""
    if operator not in PEERS:
        return None
    given, peers = PEERS[operator](shape)
    inputs = random_inputs([(each, "float32") for each in given], seed=0)
    absent = [name for name in missing() if name in peers]
    with _environment(threads), ExitStack() as processes:
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
def _environment(threads: int) -> Iterator[None]:
    """What processes that are started meanwhile inherit."""
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
