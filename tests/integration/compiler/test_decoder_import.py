"""Decoders are rewritten to keep their cache in place. Others stay functions of their cache."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from compiler.constants.fold import static_shape
from compiler.importing import decoders
from compiler.importing.decoders import keep_cache
from compiler.importing.model import fuse, import_file, kernel_calls
from compiler.importing.onnx_file import OnnxFile, parse
from compiler.importing.spec import ModelError
from compiler.verifying.decoder_cache import check_cache
from examples.networks.decoders import DECODERS, TINY, gpt2, llama, whisper

TARGET = '{"kind":"llvm","num-cores":1}'
Shapes = dict[str, tuple[int, ...]]
CAPACITY = 16


def shapes_of(model: bytes, tokens: int) -> Shapes:
    """The shapes that must be given, because no other input determines them."""
    known = {"input_ids": (1, tokens), "encoder_hidden_states": (1, 6, TINY.features)}
    found: Shapes = {}
    for value in parse(model).graph.input:
        dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        if value.name.startswith("past"):
            found[value.name] = (1, dims[1], CAPACITY, TINY.size)
        elif value.name in known:
            found[value.name] = known[value.name]
    return found


def _scaled_keys() -> bytes:
    """A Llama whose keys are scaled before the product, as PyTorch exports attention."""
    proto = parse(llama())
    graph = proto.graph
    renamed: dict[str, str] = {}
    graph.initializer.append(numpy_helper.from_array(np.array(0.5, np.float32), "root"))
    keys = {node.input[1] for node in graph.node if node.op_type == "MatMul"}
    keys &= {node.output[0] for node in graph.node if node.op_type == "Transpose"}
    nodes = []
    for node in graph.node:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        nodes.append(node)
        if node.output[0] in keys:
            name = node.output[0]
            renamed[name] = f"{name}.scaled"
            nodes.append(helper.make_node("Mul", [name, "root"], [renamed[name]]))
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    graph.ClearField("node")
    graph.node.extend(copies)
    return bytes(proto.SerializeToString())


def kept(model: bytes, tokens: int) -> OnnxFile:
    return keep_cache(parse(model), shapes_of(model, tokens), {})


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_computes_the_same_with_its_cache_in_place(name: str, tokens: int) -> None:
    file = kept(DECODERS[name](), tokens)
    assert file.cache is not None, file.no_cache
    assert (file.cache.capacity, file.cache.count, file.output_names) == (CAPACITY, tokens, ("logits",))
    assert len(file.cache.buffers) == 2 * TINY.layers
    assert {spec.name for spec in file.inputs}.isdisjoint({"attention_mask", "position_ids"})
    check_cache(file)


@pytest.mark.parametrize("make", [gpt2, whisper])
def test_a_decoder_of_one_token_keeps_its_cache(make: Callable[..., bytes]) -> None:
    file = kept(make(tokens=1), 1)
    assert file.cache is not None, file.no_cache
    check_cache(file)


@pytest.mark.parametrize("left_out", ["mask_softmax", "replace_positions"])
def test_a_wrong_rewrite_is_found(left_out: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without masks, attention would read rows without a token."""
    monkeypatch.setattr(decoders._Rewrite, left_out, lambda *_: 1)
    file = kept(whisper(), 1)
    with pytest.raises(ModelError, match="after 1 tokens, the decoder computes other outputs with its"):
        check_cache(file)


@pytest.mark.parametrize("tokens", [1, 4])
@pytest.mark.parametrize("make", [gpt2, llama, _scaled_keys])
def test_no_step_copies_a_buffer(make: Callable[..., bytes], tokens: int) -> None:
    """Keys aren't transposed, and heads that groups share aren't repeated."""
    file = kept(make(), tokens)
    assert file.cache is not None, file.no_cache
    sizes = {spec.name: math.prod(spec.shape) for spec in file.inputs}
    smallest = min(sizes[name] for name in file.cache.buffers)
    written = 0
    for call in kernel_calls(fuse(import_file(file), TARGET)):
        if call.args[0].name_hint.startswith("write_rows"):
            written += 1
        else:
            shape = static_shape(call)
            assert shape is not None
            assert math.prod(shape) < max(smallest, tokens * TINY.heads * CAPACITY + 1), call
    assert written == len(file.cache.buffers)


def test_a_rewrite_that_is_wrong_only_without_earlier_tokens_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Treat no earlier token as one earlier token."""
    write_rows = decoders._Rewrite.write_rows

    def write_behind(rewrite: Any, *arguments: Any) -> None:
        least = rewrite._op(rewrite._first, "Max", decoders.PAST_LENGTH, rewrite._constant(np.array([1])))
        rewrite._positions = rewrite._op(rewrite._first, "Identity", least)
        write_rows(rewrite, *arguments)

    monkeypatch.setattr(decoders._Rewrite, "write_rows", write_behind)
    file = kept(whisper(tokens=1), 1)
    with pytest.raises(ModelError, match="after 0 tokens, the decoder computes other outputs with its"):
        check_cache(file)


def changed(change: Callable[[onnx.GraphProto], Any]) -> bytes:
    proto = parse(llama())
    change(proto.graph)
    return bytes(proto.SerializeToString())


def reversed_concat(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.op_type == "Concat" and "past" in node.input[0])
    node.input[:] = reversed(node.input)


def without_tokens(graph: onnx.GraphProto) -> None:
    for value in graph.input:
        value.name = "words" if value.name == "input_ids" else value.name
    for node in graph.node:
        node.input[:] = ["words" if name == "input_ids" else name for name in node.input]


def scaled_past(graph: onnx.GraphProto) -> None:
    name = "past_key_values.0.key"
    for node in graph.node:
        node.input[:] = ["scaled" if one == name else one for one in node.input]
    graph.node.insert(0, helper.make_node("Neg", [name], ["scaled"]))


def two_open(graph: onnx.GraphProto) -> None:
    for value in graph.input:
        if value.name == "past_key_values.1.value":
            value.type.tensor_type.shape.dim[3].dim_param = "size"


def in_float8(graph: onnx.GraphProto) -> None:
    """Keep keys and values in float8, and compute in floats."""
    narrow = onnx.TensorProto.FLOAT8E4M3FN
    nodes: list[onnx.NodeProto] = []
    renamed: dict[str, str] = {}
    for node in graph.node:
        if node.op_type != "Identity":  # which makes the outputs present.*
            node.input[:] = [renamed.get(name, name) for name in node.input]
        if node.op_type != "Concat" or not node.input[0].startswith("past"):
            nodes.append(node)
            continue
        rows, result = node.input[1], node.output[0]
        node.input[1], renamed[result] = f"{rows}.narrow", f"{result}.wide"
        nodes.append(helper.make_node("Cast", [rows], [node.input[1]], to=narrow))
        nodes.append(node)
        nodes.append(helper.make_node("Cast", [result], [renamed[result]], to=onnx.TensorProto.FLOAT))
    for value in (*graph.input, *graph.output):
        if value.name.startswith(("past", "present")):
            value.type.tensor_type.elem_type = narrow
    copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    graph.ClearField("node")
    graph.node.extend(copies)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (reversed_concat, "its input 'past_key_values.0.key' goes to Concat; it may only go to Concat"),
        (without_tokens, "it has none of the inputs input_ids, decoder_input_ids, "),
        (scaled_past, "its input 'past_key_values.0.key' goes to Neg; it may only go to Concat"),
        (in_float8, "its input 'past_key_values.0.key' is float8_e4m3fn, which"),
        (two_open, "its input 'past_key_values.1.value' has 2 open dimensions beside its batch"),
    ],
)
def test_a_decoder_without_a_rewrite_is_a_function_of_its_cache(
    change: Callable[[onnx.GraphProto], Any], reason: str
) -> None:
    model = changed(change)
    shapes = shapes_of(model, 1) | {"attention_mask": (1, CAPACITY + 1), "position_ids": (1, 1)}
    if change is without_tokens:
        shapes["words"] = (1, 1)
    file = keep_cache(parse(model), shapes, {})
    assert file.cache is None
    assert file.no_cache.startswith(reason)
    assert "present.0.key" in file.output_names


def test_a_decoder_of_fixed_lengths_is_a_function_of_its_cache() -> None:
    def fix(graph: onnx.GraphProto) -> None:
        for value in graph.input:
            for dim in value.type.tensor_type.shape.dim:
                lengths = {"past": CAPACITY, "sequence": 1, "total": CAPACITY + 1}
                if dim.dim_param:
                    dim.dim_value = lengths[dim.dim_param]

    file = keep_cache(parse(changed(fix)), {}, {})
    assert (file.cache, file.no_cache) == (None, "")


def test_more_tokens_than_the_cache_holds_are_refused() -> None:
    with pytest.raises(ModelError, match="a cache of 16 tokens can't take 16 at once: give 'input_ids'"):
        kept(llama(), CAPACITY)


@pytest.mark.parametrize(
    ("name", "shape", "declared"),
    [("input_ids", (), r"\(1,\?\)"), ("past_key_values.0.key", (1, 2), r"\(1,2,\?,8\)")],
)
def test_shapes_of_another_rank_are_refused(name: str, shape: tuple[int, ...], declared: str) -> None:
    model = llama()
    shapes = shapes_of(model, 1) | {"attention_mask": (1, CAPACITY + 1), "position_ids": (1, 1)}
    with pytest.raises(
        ModelError, match=f"doesn't fit input '{name}', which the model declares as {declared}"
    ):
        keep_cache(parse(model), shapes | {name: shape}, {})
