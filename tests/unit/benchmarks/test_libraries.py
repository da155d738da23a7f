"""Libraries that operators are compared with: which are installed, their results, their threads."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.operators import libraries
from benchmarks.operators.libraries import EVERY_SHAPE, PEERS, TORCH, Compared, NumpyMatmul, TorchConvolution
from benchmarks.suite import OPERATORS
from benchmarks.timing.interleaved import Block, Timings


class Ours:
    def time_block(self, _block: Block) -> Sequence[float]:
        return (1e-3,)


class Theirs:
    """A fake library in its process."""

    def __init__(self, *_: object) -> None:
        assert {os.environ[name] for name in libraries.THREADS} == {"3"}

    def __enter__(self) -> Theirs:
        return self

    def __exit__(self, *_: object) -> None: ...

    def time_block(self, _block: Block) -> Sequence[float]:
        return (2e-3,)


def test_numpy_computes_the_product() -> None:
    a, b = np.ones((2, 3), "float32"), np.full((3, 4), 2, "float32")
    assert (NumpyMatmul().load(1)([a, b])() == 6).all()


def test_the_fastest_library_is_the_peer() -> None:
    slow, fast = Timings((2.0, 2.0)), Timings((1.0, 1.5))
    assert Compared((1,), slow, {"numpy": slow, "PyTorch": fast}).fastest == "PyTorch"


@pytest.mark.parametrize(
    ("operator", "shape", "absent", "timed"),
    [
        ("GMM", (4, 5, 6), ["PyTorch", "Halide"], {"numpy"}),
        ("GMM", (4, 5, 6), [], {"numpy", "PyTorch", "Halide"}),
        ("C2D", OPERATORS["C2D"].benchmark, ["Halide"], {"PyTorch"}),
        ("C2D", OPERATORS["C2D"].benchmark, [], {"PyTorch", "Halide"}),
        ("C2D", (7, 7, 4, 8, 3, 1, 1), [], {"PyTorch"}),
        ("C1D", (7, 4, 8, 3, 1, 1), [], {"PyTorch"}),
    ],
)
def test_installed_libraries_take_turns_with_ours(
    operator: str,
    shape: tuple[int, ...],
    absent: list[str],
    timed: set[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(libraries, "missing", lambda: absent)
    monkeypatch.setattr(libraries, "ProcessContestant", Theirs)
    before = dict(os.environ)
    found = libraries.compare(operator, shape, Ours(), threads=3, rounds=2)
    assert found is not None
    assert (found.ours.blocks, set(found.theirs), found.missing) == ((1e-3, 1e-3), timed, tuple(absent))
    assert dict(os.environ) == before


def test_operators_without_a_library_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    assert libraries.compare("NRM", (4, 4), Ours(), threads=3, rounds=2) is None
    monkeypatch.setattr(libraries, "missing", lambda: ["PyTorch", "Halide"])
    assert libraries.compare("C2D", (7, 7, 4, 8, 3, 1, 1), Ours(), threads=3, rounds=2) is None


def test_missing_libraries_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(libraries, "MODULES", {"numpy": "numpy", "PyTorch": "no_such_module_here"})
    assert libraries.missing() == ["PyTorch"]


@pytest.mark.parametrize(
    ("operator", "shape", "given", "torch"),
    [
        ("C1D", (8, 4, 6, 3, 2, 1), ((1, 4, 8), (6, 4, 3)), TorchConvolution(1, 2, 1)),
        ("C3D", (2, 8, 9, 4, 6, 3, 1, 1), ((1, 4, 2, 8, 9), (6, 4, 3, 3, 3)), TorchConvolution(3, 1, 1)),
        ("GRP", (8, 9, 4, 6, 3, 1, 1, 1, 2), ((1, 4, 8, 9), (6, 2, 3, 3)), TorchConvolution(2, 1, 1, 1, 2)),
        ("DIL", (8, 9, 4, 6, 3, 1, 1, 2), ((1, 4, 8, 9), (6, 4, 3, 3)), TorchConvolution(2, 1, 1, 2)),
        ("DEP", (8, 9, 4, 3, 2, 1), ((1, 4, 8, 9), (4, 1, 3, 3)), TorchConvolution(2, 2, 1, groups=4)),
        (
            "T2D",
            (8, 9, 4, 6, 4, 2, 1),
            ((1, 4, 8, 9), (4, 6, 4, 4)),
            TorchConvolution(2, 2, 1, transposed=True),
        ),
    ],
)
def test_every_convolution_has_its_peer(
    operator: str, shape: tuple[int, ...], given: tuple[tuple[int, ...], ...], torch: TorchConvolution
) -> None:
    assert PEERS[operator](shape) == (given, {TORCH: torch})


def test_ten_convolutions_are_compared() -> None:
    convolutions = [name for name in PEERS if name != "GMM"]
    shapes = {
        name: OPERATORS[name].shapes if name in EVERY_SHAPE else [OPERATORS[name].benchmark] for name in PEERS
    }
    assert sum(len(shapes[name]) for name in convolutions) == 10
