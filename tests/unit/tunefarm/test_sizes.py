"""Sizes of the dimensions that a model names become shapes of its inputs."""

from __future__ import annotations

import io
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from examples.networks.decoders import gpt2, llama, whisper
from tests.exported_program_files import S58, S77, program
from tests.onnx_models import Builder, Extent, fully_convolutional, masked_attention, residual
from tunefarm.client.sizes import IncompleteShape, Shape, Size, SizesError, sizes_of


def sizes(
    tmp_path: Path, model: bytes, given: Mapping[str, Shape], batch: int | None = None
) -> Sequence[Size]:
    path = tmp_path / "net.onnx"
    path.write_bytes(model)
    [found] = sizes_of([path], given, batch)
    return found


def named(**inputs: Sequence[Extent]) -> bytes:
    """A model of inputs with these dimensions."""
    b = Builder()
    first = next(iter(inputs))
    return b.model(dict(inputs), {b.op("Relu", first): inputs[first]})


def test_a_dimension_has_the_same_size_in_all_inputs(tmp_path: Path) -> None:
    assert sizes(tmp_path, masked_attention(1, "tokens"), {"tokens": (8, 32)}) == [
        Size("tokens=8", {"input": (1, 8, 16), "mask": (1, 8)}),
        Size("tokens=32", {"input": (1, 32, 16), "mask": (1, 32)}),
    ]
    assert sizes(tmp_path, fully_convolutional("side"), {"side": (8, 12)})[1].shapes == {
        "input": (1, 3, 12, 12)
    }


def test_two_dimensions_are_combined(tmp_path: Path) -> None:
    model = masked_attention("batch", "tokens")
    found = sizes(tmp_path, model, {"tokens": (8, 32), "batch": (1, 4)})
    assert [size.name for size in found] == [
        "tokens=8,batch=1",
        "tokens=8,batch=4",
        "tokens=32,batch=1",
        "tokens=32,batch=4",
    ]
    assert found[1].shapes == {"input": (4, 8, 16), "mask": (4, 8)}


def test_a_single_size_is_a_model_with_fixed_shapes(tmp_path: Path) -> None:
    found = sizes(tmp_path, masked_attention("batch", "tokens"), {"tokens": (8,), "batch": (2,)})
    assert found == [Size("", {"input": (2, 8, 16), "mask": (2, 8)})]
    assert sizes(tmp_path, residual("n"), {"input": (2, 3, 8, 8)}) == [Size("", {"input": (2, 3, 8, 8)})]
    assert sizes(tmp_path, residual("n"), {}, 4) == [Size("", {})]


def test_a_batch_is_the_size_of_leading_dimensions(tmp_path: Path) -> None:
    found = sizes(tmp_path, masked_attention("batch", "tokens"), {"tokens": (8, 32)}, 2)
    assert [size.shapes["mask"] for size in found] == [(2, 8), (2, 32)]
    found = sizes(tmp_path, named(x=["", "n"], y=["n", 3]), {"n": (5, 6)}, 2)
    assert [size.shapes for size in found] == [{"x": (2, 5), "y": (5, 3)}, {"x": (2, 6), "y": (6, 3)}]


def test_a_size_names_a_folder_whatever_the_dimension_is_called(tmp_path: Path) -> None:
    found = sizes(tmp_path, named(x=["a/b + 1"]), {"a/b + 1": (2, 3)})
    assert [size.name for size in found] == ["a_b___1=2", "a_b___1=3"]


def test_several_models_have_the_sizes_of_the_dimensions_that_they_name(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.onnx", "b.onnx", "c.onnx")]
    models = [masked_attention(1, "tokens"), masked_attention("n", "tokens"), residual(1)]
    for file, model in zip(files, models, strict=True):
        file.write_bytes(model)
    found = sizes_of(files, {"tokens": (8, 32), "n": (3,)})
    assert [[size.name for size in own] for own in found] == [
        ["tokens=8", "tokens=32"],
        ["tokens=8,n=3", "tokens=32,n=3"],
        [""],
    ]


def test_a_file_of_another_format_has_the_shapes_as_they_are(tmp_path: Path) -> None:
    for data in (b"PK\x03\x04", b"onnx", b"\x3a\x01"):
        assert sizes(tmp_path, data, {"x": (1, 3)}) == [Size("", {"x": (1, 3)})]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"tokenz": (8,)}, r"no dimension 'tokenz'; inputs are: input \(batch, tokens, 16\), mask"),
        ({"tokens": (8, 32)}, "leaves 'batch' open: give its size too, batch=1"),
        ({"tokens": (8, 8), "batch": (1,)}, "a size of tokens is given twice"),
        (
            {"tokens": (8, 9), "mask": (1, 8)},
            "input 'mask' is given a shape and its dimension 'tokens' sizes",
        ),
        (
            {"tokens": tuple(range(1, 18)), "batch": (1,)},
            "the models have 17 sizes in all, and a job takes 16",
        ),
        ({"tokens": tuple(range(1, 999)), "batch": tuple(range(1, 999))}, "the models have 996004 sizes"),
    ],
)
def test_sizes_that_cannot_be_are_refused(given: dict[str, Shape], why: str, tmp_path: Path) -> None:
    with pytest.raises(SizesError, match=why):
        sizes(tmp_path, masked_attention("batch", "tokens"), given)


def test_a_dimension_without_a_name_needs_the_whole_shape(tmp_path: Path) -> None:
    with pytest.raises(SizesError, match="input 'x' leaves another dimension open: give its whole shape"):
        sizes(tmp_path, named(x=["n", ""]), {"n": (5, 6)})


@pytest.mark.parametrize(
    ("model", "batch", "advice"),
    [
        (named(x=["n", 3, 96, 96]), None, "--batch 1, or --shape x=1,3,96,96"),
        (named(x=[0, 3, 96, 96]), None, "--batch 1, or --shape x=1,3,96,96"),
        (named(x=["n", "tokens"]), None, "--shape x=1,1"),
        (named(x=["n", "tokens"]), 2, "--shape x=1,1"),
    ],
)
def test_open_dimensions_are_refused_with_the_models_own_extents(
    tmp_path: Path, model: bytes, batch: int | None, advice: str
) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(model)
    with pytest.raises(IncompleteShape, match=f"leaves dimensions open .*: give {advice}$"):
        sizes_of([path], {}, batch)


@pytest.mark.parametrize(
    ("given", "batch"),
    [({"x": (1, 3, 8, 8)}, None), ({"n": (1, 2), "side": (8,)}, None), ({"side": (8,)}, 4)],
)
def test_dimensions_that_are_given_are_complete(
    tmp_path: Path, given: Mapping[str, Shape], batch: int | None
) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(named(x=["n", 3, "side", "side"]))
    sizes_of([path], given, batch)


def test_a_decoder_has_default_sizes(tmp_path: Path) -> None:
    found = sizes(tmp_path, llama(), {})
    assert [size.name for size in found] == [
        "sequence=1,past=256",
        "sequence=1,past=1024",
        "sequence=32,past=256",
        "sequence=32,past=1024",
    ]
    assert found[2].shapes == {
        "input_ids": (1, 32),
        **{
            f"past_key_values.{layer}.{kind}": (1, 2, 256, 8) for layer in (0, 1) for kind in ("key", "value")
        },
    }


def test_given_sizes_replace_a_decoders_default_sizes(tmp_path: Path) -> None:
    given = {"past": (64,), "total": (65,), "audio": (6,)}
    with pytest.raises(SizesError, match="there is no input and no dimension 'audio'"):
        sizes(tmp_path, llama(), given)
    del given["audio"]
    assert [size.shapes["input_ids"] for size in sizes(tmp_path, llama(), given)] == [(1, 1), (1, 32)]
    [whole] = sizes(tmp_path, llama(), {"input_ids": (1, 8), "past": (64,)})
    assert whole.shapes["input_ids"] == (1, 8)
    [single] = sizes(tmp_path, gpt2(tokens=1), {"past": (64,)})
    assert single.shapes["past_key_values.0.key"] == (1, 4, 64, 8)
    with pytest.raises(SizesError, match="input 'encoder_hidden_states' leaves 'audio' open"):
        sizes(tmp_path, whisper(), {})


def test_dimensions_of_an_exported_program_have_sizes(tmp_path: Path) -> None:
    file = program({"ids": (1, S58), "mask": (1, 1, S58), "twice": (f"Mul(Integer(2), {S58})", 3)})
    assert sizes(tmp_path, file, {"s58": (1, 32)}) == [
        Size("s58=1", {"ids": (1, 1), "mask": (1, 1, 1)}),
        Size("s58=32", {"ids": (1, 32), "mask": (1, 1, 32)}),
    ]
    # The service computes the shapes of inputs that share the dimension.
    wholes: Sequence[dict[str, Shape]] = [
        {"ids": (1, 8)},
        {"mask": (1, 1, 8)},
        {"ids": (1, 8), "twice": (16, 3)},
    ]
    for given in wholes:
        assert sizes(tmp_path, file, given) == [Size("", given)]
    with pytest.raises(SizesError, match=r"no dimension 'n'; inputs are: ids \(1, s58\), .* twice \(\?, 3\)"):
        sizes(tmp_path, file, {"n": (1,)})
    with pytest.raises(IncompleteShape, match=r"input 'ids' of .* \(1, s58\): give --shape ids=1,1$"):
        sizes(tmp_path, file, {})
    with pytest.raises(IncompleteShape, match=r"\(s77, 3\): give --batch 1, or --shape x=1,3$"):
        sizes(tmp_path, program({"x": (S77, 3)}), {})
    assert "torch" not in sys.modules


def test_an_extent_that_no_other_input_gives_needs_the_whole_shape(tmp_path: Path) -> None:
    file = program({"x": (S58, f"Add({S58}, Integer(1))"), "y": (S58,)})
    assert sizes(
        tmp_path, program({"x": (4, f"Add({S58}, {S77})"), "y": (S58,)}), {"x": (4, 9), "s58": (2,)}
    ) == [Size("", {"x": (4, 9), "y": (2,)})]
    assert sizes(tmp_path, file, {"s58": (2,)}) == [Size("", {"y": (2,)})]
    with pytest.raises(IncompleteShape, match=r"input 'x' of .* \(4, \?\): give --shape x=4,1$"):
        sizes(tmp_path, program({"x": (4, f"Add({S58}, {S77})"), "y": (S58,)}), {"y": (2,)})


@pytest.mark.parametrize("writes", ["index_copy_.default", "index_put_.default"])
@pytest.mark.parametrize(("limit", "tokens"), [(None, [1, 32]), (100, [1, 32]), (5, [1, 5]), (1, [1])])
def test_an_exported_decoder_has_default_numbers_of_tokens(
    writes: str, limit: int | None, tokens: Sequence[int], tmp_path: Path
) -> None:
    inputs = {"input_ids": (1, S58), "cache_position": (S58,)}
    found = sizes(tmp_path, program(inputs, limit, writes), {})
    assert [size.shapes for size in found] == [
        {"input_ids": (1, count), "cache_position": (count,)} for count in tokens
    ]
    [chosen] = sizes(tmp_path, program(inputs, limit, writes), {"input_ids": (1, 4)})
    assert chosen.shapes == {"input_ids": (1, 4)}
    with pytest.raises(IncompleteShape, match=r"give --shape input_ids=1,1$"):
        sizes(tmp_path, program(inputs, limit), {})
    # A buffer is an input of the library.
    file = program({"input_ids": (1, 1), "cache_position": (1,)}, limit, writes)
    assert sizes(tmp_path, file, {"b_keys": (1, 64)}) == [Size("", {"b_keys": (1, 64)})]


@pytest.mark.parametrize("described", [b"", b"{}", b"[" * 100_000, b'{"graph_module": {"graph": []}}'])
def test_a_program_that_cannot_be_read_has_the_shapes_as_they_are(described: bytes, tmp_path: Path) -> None:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/models/model.json", described)
    assert sizes(tmp_path, file.getvalue(), {"x": (1, 3)}) == [Size("", {"x": (1, 3)})]
