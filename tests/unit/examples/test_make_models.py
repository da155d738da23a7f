"""The example networks are standard ones: valid, seeded, and with activations of a sane size."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from examples import make_models


def _run(model: onnx.ModelProto, shape: tuple[int, ...]) -> np.ndarray:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    image = np.random.default_rng(1).standard_normal(shape, dtype=np.float32)
    return session.run(None, {"input": image})[0]


@pytest.mark.parametrize("network", sorted(make_models.NETWORKS))
def test_tiny_networks_give_outputs_that_differ_and_stay_small(network: str) -> None:
    logits = _run(make_models.make(network, tiny=True), (1, 3, 32, 32))
    assert logits.shape == (1, 10)
    assert 0.01 < logits.std() < 10.0
    assert np.abs(logits).max() < 50.0


@pytest.mark.parametrize(
    ("network", "convolutions", "parameters"),
    [("resnet18", 20, 11_699_112), ("resnet50", 53, 25_610_152), ("mobilenet_v2", 52, 3_538_984)],
)
def test_full_networks_have_the_published_size(network: str, convolutions: int, parameters: int) -> None:
    model = make_models.make(network)
    kinds = Counter(node.op_type for node in model.graph.node)
    assert kinds["Conv"] == kinds["BatchNormalization"] == convolutions
    stored = sum(int(np.prod(weight.dims)) for weight in model.graph.initializer if weight.dims)
    assert stored == parameters


def test_the_seed_decides_the_bytes() -> None:
    first, again, other = (make_models.make("resnet18", tiny=True, seed=s) for s in (3, 3, 4))
    assert first.SerializeToString() == again.SerializeToString()
    assert first.SerializeToString() != other.SerializeToString()


def test_batch_can_be_fixed_or_left_open() -> None:
    assert _run(make_models.make("resnet18", tiny=True, batch=2), (2, 3, 32, 32)).shape == (2, 10)
    assert _run(make_models.make("resnet18", tiny=True, batch="N"), (3, 3, 32, 32)).shape == (3, 10)


def test_command_writes_a_file_that_onnx_reads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new folder" / "net.onnx"
    make_models.main(["mobilenet_v2", "--tiny", "--out", str(target)])
    onnx.checker.check_model(onnx.load(target))
    assert str(target) in capsys.readouterr().out


def test_command_refuses_an_empty_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        make_models.main(["resnet18", "--tiny", "--batch", "0", "--out", str(tmp_path / "net.onnx")])
    assert stopped.value.code == 1
    assert "at least 1" in capsys.readouterr().err
