"""The peers of a GPU: networks by JAX, products by cuBLAS, and peers that take too long or fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from rich.console import Console

from benchmarks.gpu import networks
from benchmarks.gpu.jax_network import JAX, JaxNetwork, missing_jax
from benchmarks.gpu.operators import CUBLAS, ProductResult, product_figures
from benchmarks.gpu.peers import COMPILED, GRAPHS, LimitedLoad
from benchmarks.networks.plan import TUNED
from benchmarks.timing.contestants import ProcessContestant
from benchmarks.timing.deviation import random_inputs
from benchmarks.timing.interleaved import Block, Timings
from examples import make_models
from tests import onnx_models
from tests.devices import GPU
from tests.marks import slow_lane_except
from tests.unit.benchmarks.compiling import Compiling
from tests.unit.benchmarks.measured import TUNING

PLAN = networks.Plan("dcgan", "float32", 4, None, 1, 2, tiny=True, peer_s=30.0)


@pytest.mark.parametrize("network", slow_lane_except(networks.NETWORKS, "dcgan"))
def test_jax_computes_the_networks(network: str, tmp_path: Path) -> None:
    model = make_models.make(network, tiny=True)
    onnx.save(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    inputs = random_inputs(
        [
            (tuple(one.shape), {"tensor(float)": "float32"}.get(one.type, "int64"))
            for one in session.get_inputs()
        ],
        0,
    )
    expected = session.run(None, dict(zip([one.name for one in session.get_inputs()], inputs, strict=True)))
    found = JaxNetwork(tmp_path / "model.onnx", platform="cpu").load(1)(inputs)()
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=1e-3, atol=1e-4)


def test_an_operator_that_jax_lacks_is_named(tmp_path: Path) -> None:
    builder = onnx_models.Builder()
    file = tmp_path / "model.onnx"
    file.write_bytes(builder.model({"x": [2, 3]}, {builder.op("Selu", "x"): [2, 3]}))
    with pytest.raises(ValueError, match="lack Selu"):
        JaxNetwork(file, platform="cpu").load(1)


def test_jax_without_a_plugin_for_cuda_is_no_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {"jax"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: name if name in there else None)
    assert missing_jax() == "JAX is there, but no plugin of it for CUDA"
    there.add("jax_cuda13_plugin")
    assert missing_jax() == ""
    there.clear()
    assert missing_jax() == "JAX is not installed"


@pytest.mark.slow
def test_a_peer_that_compiles_for_too_long_ends() -> None:
    with pytest.raises(BrokenProcessPool):
        ProcessContestant(LimitedLoad(Compiling(1000.0), 0.5), 1, [])
    with ProcessContestant(LimitedLoad(Compiling(0.0), 300.0), 1, []) as quick:
        assert len(quick.time_block(Block(0.0, 0.0))) == 3


class FakeContestant:
    """A contestant in its process. `failures` are raised while the peer with that name is loaded."""

    failures: dict[str, Exception]

    def __init__(self, file: object, *_: object) -> None:
        self._name = {"JaxNetwork": JAX}.get(type(getattr(file, "model", file)).__name__, TUNED)
        if getattr(getattr(file, "model", None), "compiled", None) is not None:
            self._name = COMPILED if file.model.compiled else GRAPHS  # type: ignore[attr-defined]
        if self._name in self.failures:
            raise self.failures[self._name]

    def __enter__(self) -> FakeContestant:
        return self

    def __exit__(self, *_: object) -> None: ...

    def time_block(self, _block: Block) -> Sequence[float]:
        return ({TUNED: 1e-3, GRAPHS: 3e-3, COMPILED: 2e-3, JAX: 4e-3}[self._name],)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[networks.NetworkResult]]:
    """Measure a network with fakes in place of the stack and the processes. Return what is kept."""

    def run(**failures: Exception) -> list[networks.NetworkResult]:
        @contextmanager
        def no_session(*_: object) -> Any:
            yield SimpleNamespace(tune=lambda *_args, **_more: TUNING)

        monkeypatch.setattr(networks, "session", no_session)
        monkeypatch.setattr(networks, "absent_peers", dict)
        monkeypatch.setattr(networks, "ProcessContestant", FakeContestant)
        monkeypatch.setattr(networks, "_pairs_right", lambda _: (0, 0))
        monkeypatch.setattr("benchmarks.timing.interleaved.time.sleep", lambda _: None)
        names = {"graphs": GRAPHS, "compiled": COMPILED, "jax": JAX}
        FakeContestant.failures = {names[name]: error for name, error in failures.items()}
        found: list[networks.NetworkResult] = []
        networks.run(PLAN, tmp_path, Console(quiet=True), found.append)
        return found

    return run


def test_a_network_is_kept_after_each_peer(kept: Callable[..., list[networks.NetworkResult]]) -> None:
    found = kept()
    assert [list(one.timings) for one in found] == [
        [TUNED],
        [TUNED, GRAPHS],
        [TUNED, GRAPHS, COMPILED],
        [TUNED, GRAPHS, COMPILED, JAX],
    ]
    assert [list(one.left_out) for one in found] == [[GRAPHS, COMPILED, JAX], [COMPILED, JAX], [JAX], []]
    figures = {one.name: one for one in networks.figures_of(found[-1:])}
    assert figures["dcgan-tiny: speed-up over PyTorch with CUDA graphs"].value == pytest.approx(3.0)
    assert figures["dcgan-tiny: speed-up over the fastest peer"].value == pytest.approx(2.0)
    assert "JAX: 4 ms" in figures["dcgan-tiny: latency"].note
    early = {one.name: one for one in networks.figures_of(found[:1])}
    assert "without JAX: there was no time" in early["dcgan-tiny: latency"].note


def test_a_peer_that_fails_is_left_out_and_named(kept: Callable[..., list[networks.NetworkResult]]) -> None:
    *_, last = kept(graphs=NotImplementedError("no\nconverter"), compiled=BrokenProcessPool())
    assert list(last.timings) == [TUNED, JAX]
    assert last.left_out == {GRAPHS: "no converter", COMPILED: "it took over 30 s to compile, or crashed"}
    assert last.ratio(GRAPHS) is None
    assert last.ratio("the fastest peer") == pytest.approx(4.0)


def test_each_type_has_its_peer_and_its_mean() -> None:
    timings = {TUNED: Timings((0.01,)), GRAPHS: Timings((0.03,)), JAX: Timings((0.02,))}
    results = [
        networks.NetworkResult(replace(PLAN, element_type=name), TUNING, timings) for name in networks.TYPES
    ]
    means = [one for one in networks.figures_of(results) if one.subject.startswith("geometric mean")]
    assert [(one.value, one.peer, one.bound) for one in means] == [
        (pytest.approx(3.0), GRAPHS, 2.0),
        (pytest.approx(2.0), "the fastest peer", 1.2),
        (pytest.approx(2.0), "the fastest peer", 1.0),
    ]


@pytest.mark.parametrize(("side", "aim"), [(1024, None), (2048, 0.75)])
def test_a_product_is_compared_with_cublas(side: int, aim: float | None) -> None:
    result = ProductResult("float16", side, Timings((2e-4, 2e-4)), Timings((1e-4, 1e-4)))
    share, ratio = product_figures(result, GPU)
    assert share.metric == "share of the measured peak"
    assert (ratio.value, ratio.peer, ratio.bound) == (pytest.approx(0.5), CUBLAS, aim)
    assert ratio.note == "cuBLAS: 100 us, ours: 200 us"
    assert len(product_figures(replace(result, cublas=None), GPU)) == 1
