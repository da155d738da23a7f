"""The example networks are the published ones, valid and seeded, and their activations keep their scale."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray

from benchmarks.timing.deviation import random_inputs
from examples import make_models

CLASSIFIERS = sorted({*make_models.NETWORKS} - {*make_models.NO_IMAGE})


def _run(model: onnx.ModelProto, seed: int = 1) -> list[NDArray[np.float32]]:
    """Compute the outputs for random inputs; a dynamic batch is one input."""
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    dtypes = {"tensor(float)": "float32", "tensor(int64)": "int64"}
    inputs = session.get_inputs()
    specs = [(tuple(n if isinstance(n, int) else 3 for n in one.shape), dtypes[one.type]) for one in inputs]
    arrays = random_inputs(specs, seed)
    return session.run(None, {one.name: array for one, array in zip(inputs, arrays, strict=True)})


@pytest.mark.parametrize("network", CLASSIFIERS)
def test_tiny_classifiers_give_outputs_that_differ_and_stay_small(network: str) -> None:
    (logits,) = _run(make_models.make(network, tiny=True))
    assert logits.shape == (1, 10)
    assert 0.01 < logits.std() < 10.0
    assert np.abs(logits).max() < 50.0


def test_a_tiny_generator_makes_images_that_are_not_saturated() -> None:
    model = make_models.make("dcgan", tiny=True)
    first, other = (_run(model, seed)[0] for seed in (1, 2))
    assert first.shape == (1, 3, 64, 64)
    assert first.std() > 0.1
    assert (np.abs(first) > 0.99).mean() < 0.1
    assert np.abs(first - other).mean() > 0.1


def test_a_tiny_encoder_reads_words_under_their_mask() -> None:
    model = make_models.make("bert_base", tiny=True)
    states, pooled = _run(model)
    assert (states.shape, pooled.shape) == ((1, 16, 96), (1, 96))
    assert 0.5 < states.std() < 2.0
    assert (np.abs(pooled) > 0.99).mean() < 0.1
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    words = np.arange(16)[None] + 20
    mask = (words < 30).astype(np.int64)
    feed = {"input_ids": words, "attention_mask": mask, "token_type_ids": np.zeros_like(words)}
    seen = session.run(["last_hidden_state"], feed)[0]
    hidden = np.where(mask == 1, words, 7)  # other words at masked positions
    unchanged = session.run(["last_hidden_state"], feed | {"input_ids": hidden})[0]
    np.testing.assert_allclose(unchanged[0, :10], seen[0, :10], atol=1e-5)
    assert np.abs(unchanged[0, 10:] - seen[0, 10:]).max() > 0.1


def test_a_tiny_decoder_does_not_look_ahead() -> None:
    model = make_models.make("gpt2", tiny=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    words = np.arange(16)[None]
    (scores,) = session.run(None, {"input_ids": words})
    (changed,) = session.run(None, {"input_ids": np.where(words < 10, words, 99)})
    assert scores.shape == (1, 16, 100)
    np.testing.assert_allclose(changed[0, :10], scores[0, :10], atol=1e-5)
    assert np.abs(changed[0, 10:] - scores[0, 10:]).max() > 0.1


# Weights and the running statistics of batch norms, as counted by the networks' own publications and code.
@pytest.mark.parametrize(
    ("network", "parameters", "kinds"),
    [
        ("resnet18", 11_699_112, {"Conv": 20, "BatchNormalization": 20}),
        ("resnet50", 25_610_152, {"Conv": 53, "BatchNormalization": 53}),
        ("mobilenet_v2", 3_538_984, {"Conv": 52, "BatchNormalization": 52}),
        ("efficientnet_b0", 5_330_564, {"Conv": 81, "BatchNormalization": 49, "Sigmoid": 65}),
        ("squeezenet1_1", 1_235_496, {"Conv": 26, "Concat": 8, "MaxPool": 3}),
        ("dcgan", 3_578_624, {"ConvTranspose": 5, "BatchNormalization": 4}),
        ("resnet3d_18", 33_688_872, {"Conv": 20, "BatchNormalization": 20}),
        ("convnext_t", 28_589_128, {"Conv": 22, "LayerNormalization": 23, "Erf": 18}),
        # Their weights take seconds to draw.
        pytest.param(
            *("vit_b16", 86_567_656, {"MatMul": 72, "LayerNormalization": 25, "Erf": 12, "Softmax": 12}),
            marks=pytest.mark.slow_lane,
        ),
        pytest.param(
            # The published count, and the causal mask.
            *("gpt2", 124_439_808 + 128 * 128, {"MatMul": 73, "LayerNormalization": 25, "Tanh": 12}),
            marks=pytest.mark.slow_lane,
        ),
        pytest.param(
            *("bert_base", 109_482_240, {"MatMul": 96, "LayerNormalization": 25, "Erf": 12, "Softmax": 12}),
            marks=pytest.mark.slow_lane,
        ),
    ],
)
def test_full_networks_have_the_published_size(network: str, parameters: int, kinds: dict[str, int]) -> None:
    model = make_models.make(network)
    found = Counter(node.op_type for node in model.graph.node)
    assert {kind: found[kind] for kind in kinds} == kinds
    stored = [weight for weight in model.graph.initializer if weight.data_type == onnx.TensorProto.FLOAT]
    assert sum(int(np.prod(weight.dims)) for weight in stored if weight.dims) == parameters


def test_the_seed_decides_the_bytes() -> None:
    first, again, other = (make_models.make("resnet18", tiny=True, seed=s) for s in (3, 3, 4))
    assert first.SerializeToString() == again.SerializeToString()
    assert first.SerializeToString() != other.SerializeToString()


def test_batch_can_be_fixed_or_dynamic() -> None:
    assert _run(make_models.make("resnet18", tiny=True, batch=2))[0].shape == (2, 10)
    assert _run(make_models.make("resnet18", tiny=True, batch="N"))[0].shape == (3, 10)


@pytest.mark.parametrize("network", sorted(make_models.NETWORKS))
def test_batched_and_single_inputs_have_equal_outputs(network: str) -> None:
    """This finds a batch that is mixed up with tokens, heads or channels."""
    alone, both = (make_models.make(network, tiny=True, batch=batch) for batch in (1, 2))
    outputs = _run(both)
    session = onnxruntime.InferenceSession(alone.SerializeToString(), providers=["CPUExecutionProvider"])
    specs = [
        ((2, *one.shape[1:]), "int64" if "int" in one.type else "float32") for one in session.get_inputs()
    ]
    arrays = random_inputs(specs, 1)
    names = [one.name for one in session.get_inputs()]
    for index in range(2):
        feed = {name: array[index : index + 1] for name, array in zip(names, arrays, strict=True)}
        for together, single in zip(outputs, session.run(None, feed), strict=True):
            np.testing.assert_allclose(together[index : index + 1], single, rtol=1e-3, atol=1e-4)


def test_encoders_may_have_a_dynamic_batch() -> None:
    states, pooled = _run(make_models.make("bert_base", tiny=True, batch="N"))
    assert (states.shape, pooled.shape) == ((3, 16, 96), (3, 96))


@pytest.mark.parametrize(
    ("network", "wrong", "why"),
    [
        ("vit_b16", {"batch": "N"}, "its batch must be a number"),
        ("vit_b16", {"size": 40}, "a multiple of 16"),
        ("dcgan", {"size": 64}, "takes no image"),
        ("bert_base", {"size": 64}, "takes no image"),
        ("resnet18", {"size": 0}, "at least 1"),
    ],
)
def test_unsupported_arguments_are_refused(network: str, wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        make_models.make(network, tiny=True, **wrong)


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
