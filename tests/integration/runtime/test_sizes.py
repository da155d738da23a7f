"""A model compiled in several sizes runs for the sizes between them, if that is correct."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from tunefarm_runtime import LoadError, NoSuchSize, RunError, load
from tunefarm_runtime.model import holds

from compiler.importing.model import fuse_untuned, read_onnx
from compiler.packaging.artifact import Manifest, build_library
from compiler.target import detect_device
from tests.onnx_models import Builder, Extent, fully_convolutional, masked_attention
from tunefarm.client.sizes import sizes_of

Compile = Callable[[bytes, str, tuple[int, ...]], Path]
Array = NDArray[np.float32]


def compile_sizes(parent: Path, model: bytes, name: str, extents: tuple[int, ...]) -> Path:
    """Compile a model in sizes of a dimension, and return the folder."""
    file, device = parent / "net.onnx", detect_device(1)
    file.write_bytes(model)
    [sizes] = sizes_of([file], {name: extents})
    for size in sizes:
        imported = read_onnx(model, size.shapes)
        folder = parent / "tuned" / size.name
        folder.mkdir(parents=True)
        untuned = fuse_untuned(imported, device.target)
        build_library(untuned, device.target, folder / "model.so")
        manifest = Manifest(
            "net", "sha", device.target, "cafe", imported.inputs, imported.outputs, 1, {}, 0.0
        )
        (folder / "manifest.json").write_text(manifest.to_json())
    return parent / "tuned"


@pytest.fixture
def compiled(tmp_path: Path) -> Compile:
    return partial(compile_sizes, tmp_path)


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a mask, for 4 and 12 tokens."""
    return compile_sizes(tmp_path_factory.mktemp("masked"), masked_attention(1, "tokens"), "tokens", (12, 4))


def drawn(*shape: int) -> Array:
    return np.random.default_rng(1).standard_normal(shape, dtype=np.float32)


def expected(model: bytes, *inputs: Array) -> list[Array]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    names = [one.name for one in session.get_inputs()]
    return [np.asarray(one) for one in session.run(None, dict(zip(names, inputs, strict=True)))]


def same(found: Sequence[Array], wanted: Sequence[Array]) -> None:
    for own, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=1e-5)


def test_padding_is_correct_with_a_mask(masked: Path) -> None:
    data = masked_attention(1, "tokens")
    model = load(masked, pad=True)
    assert [size["mask"] for size in model.sizes] == [(1, 4), (1, 12)]
    for tokens in (1, 4, 5, 12):
        inputs = drawn(1, tokens, 16), np.ones((1, tokens), np.float32)
        found = model(*inputs)
        assert found[0].shape == (1, tokens, 32)
        same(found, expected(data, *inputs))
    with pytest.raises(NoSuchSize, match=r"\(1, 4, 16\) \(1, 4\); \(1, 12, 16\) .*: none is large enough"):
        model(drawn(1, 13, 16), drawn(1, 13))


def test_without_padding_other_sizes_are_refused(compiled: Compile) -> None:
    data = fully_convolutional("side")
    folder = compiled(data, "side", (6, 8))
    model = load(folder)
    for side in (8, 6):
        same(model(drawn(1, 3, side, side)), expected(data, drawn(1, 3, side, side)))
    with pytest.raises(NoSuchSize, match=r"compiled for inputs of \(1, 3, 6, 6\); \(1, 3, 8, 8\), not"):
        model(drawn(1, 3, 7, 7))
    with pytest.raises(LoadError, match=r"axis 2 of output .* has the lengths 3, 4, and no axis of an input"):
        load(folder, pad=True)


def hidden_by_one(tokens: Extent) -> bytes:
    """The largest of all tokens that aren't hidden, subtracted from each."""
    b = Builder()
    lowered = b.op("Sub", "input", b.op("Mul", "hidden", b.constant(np.float32(1e4))))
    largest = b.op("ReduceMax", lowered, axes=[1], keepdims=1)
    return b.model(
        {"input": [1, tokens, 4], "hidden": [1, tokens, 1]}, {b.op("Sub", "input", largest): [1, tokens, 4]}
    )


def test_masks_are_padded_with_their_hiding_value(compiled: Compile) -> None:
    data = hidden_by_one("tokens")
    folder = compiled(data, "tokens", (4, 9))
    inputs = drawn(1, 6, 4) - 3, np.zeros((1, 6, 1), np.float32)
    same(load(folder, pad={"hidden": 1})(*inputs), expected(data, *inputs))
    with pytest.raises(LoadError, match="the model mixes what is padded into the rest"):
        load(folder, pad={"input": 1e6})
    with pytest.raises(LoadError, match="no input nobody to pad: the model takes input, hidden"):
        load(folder, pad={"nobody": 1})


@pytest.mark.parametrize(
    ("dtype", "number", "expected_answer"),
    [
        *(("int8", 127, True), ("int8", 128, False), ("uint8", -1, False), ("int64", 0.5, False)),
        *(("bool", 1, True), ("bool", 2, False), ("float32", 0.1, True), ("float16", -1e4, True)),
        *(("int32", float("inf"), False), ("int32", float("nan"), False), ("float32", -np.inf, True)),
    ],
)
def test_the_padding_value_must_fit_the_inputs_type(dtype: str, number: float, expected_answer: bool) -> None:
    assert holds(np.dtype(dtype), number) is expected_answer


@pytest.mark.parametrize(("pad", "fitting"), [(False, [4, 9]), (True, [1, 4, 7, 9])])
def test_inputs_that_no_size_fits_go_to_the_fallback(
    pad: bool, fitting: list[int], compiled: Compile
) -> None:
    data = masked_attention(1, "tokens")
    asked: list[int] = []

    def fallback(*inputs: Array) -> list[Array]:
        asked.append(inputs[0].shape[1])
        return expected(data, *inputs)

    model = load(compiled(data, "tokens", (4, 9)), pad=pad, fallback=fallback)
    for tokens in (1, 4, 7, 9, 12):
        inputs = drawn(1, tokens, 16), np.ones((1, tokens), np.float32)
        same(model(*inputs), expected(data, *inputs))
    assert asked == [tokens for tokens in (1, 4, 7, 9, 12) if tokens not in fitting]
    with pytest.raises(RunError, match="input mask is float64"):
        model(drawn(1, 4, 16), np.ones((1, 4)))


def pooled(tokens: Extent) -> bytes:
    b = Builder()
    mean = b.op("ReduceMean", "input", axes=[1], keepdims=1)
    return b.model({"input": [1, tokens, 4]}, {b.op("Sub", "input", mean): [1, tokens, 4]})


def test_padding_that_changes_results_is_refused(compiled: Compile) -> None:
    folder = compiled(pooled("n"), "n", (4, 9))
    with pytest.raises(LoadError, match=r"changes by .* when inputs \(1, 4, 4\) are padded to \(1, 9"):
        load(folder, pad=True)
    same(load(folder)(drawn(1, 9, 4)), expected(pooled("n"), drawn(1, 9, 4)))


@pytest.mark.parametrize(
    ("inputs", "why"),
    [
        ([drawn(1, 4, 16)], r"takes 2 inputs \(input, mask\), not 1"),
        ([drawn(1, 4, 16), np.ones((1, 4))], "input mask is float64, and the model takes float32"),
        ([drawn(1, 5, 16), drawn(1, 6)], "6 and 5 are lengths of the same dimension"),
        ([drawn(1, 5, 15), drawn(1, 5)], "no dimension of one size is padded"),
        ([drawn(2, 4, 16), drawn(2, 4)], "no dimension of one size is padded"),
        ([drawn(5, 16), drawn(1, 5)], "the model was compiled for inputs of"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs: list[Array], why: str, masked: Path) -> None:
    model = load(masked, pad=True)
    with pytest.raises(RunError, match=why):
        model(*inputs)


def test_a_folder_holds_one_model(compiled: Compile, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="holds no compiled model"):
        load(tmp_path)
    folder = compiled(pooled("n"), "n", (4, 9))
    same(load(folder / "n=4")(drawn(1, 4, 4)), expected(pooled("n"), drawn(1, 4, 4)))
    manifest = folder / "n=9" / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text.replace('"sha"', '"another"'))
    with pytest.raises(LoadError, match="holds several models"):
        load(folder)
    manifest.write_text(text[:50])
    with pytest.raises(LoadError, match=r"manifest.json is damaged"):
        load(folder)
    manifest.write_text(text)
    (folder / "manifest.json").write_text(text)
    with pytest.raises(LoadError, match="a compiled model and others in folders"):
        load(folder)
