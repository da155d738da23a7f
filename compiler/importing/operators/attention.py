"""Convert attention operators of other runtimes' optimizers.

As in ONNX's own Attention, queries, keys and values are (batch, heads, length, size).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from compiler.importing.onnx_graph import Converter, Graph
from compiler.importing.operators.quantized import cast
from compiler.importing.values import Node, UnsupportedOperator, Value, numpy_dtype


def heads_of(graph: Graph, value: Value, heads: int) -> Value:
    """(batch, length, heads * size) -> (batch, heads, length, size)"""
    if value.rank == 4:
        return value
    batch, length, width = value.shape
    split = graph.op("Reshape", value, np.array([batch, length, heads, width // heads]))
    return graph.op("Transpose", split, perm=[0, 2, 1, 3])


def join_heads(graph: Graph, value: Value) -> Value:
    """(batch, heads, length, size) -> (batch, length, heads * size)"""
    batch, heads, length, size = value.shape
    turned = graph.op("Transpose", value, perm=[0, 2, 1, 3])
    return graph.op("Reshape", turned, np.array([batch, length, heads * size]))


def attend(
    graph: Graph,
    query: Value,
    key: Value,
    value: Value,
    scale: float,
    added: Sequence[Value],
    softcap: float = 0,
) -> Value:
    """Return softmax(scale * query key^T + added) value, with a separate axis for the heads."""
    turned = graph.op("Transpose", key, perm=[0, 1, 3, 2])
    scores = graph.op("MatMul", query, turned)
    scores = graph.op("Mul", scores, np.array(scale, scores.dtype))
    if softcap:
        bound = np.array(softcap, scores.dtype)
        scores = graph.op("Mul", graph.op("Tanh", graph.op("Div", scores, bound)), bound)
    for each in added:
        scores = graph.op("Add", scores, each)
    return graph.op("MatMul", graph.op("Softmax", scores, axis=-1), value)


def _padding_mask(
    graph: Graph, mask: Value, batch: int, queries: int, keys: int, filled: float, dtype: str
) -> Value:
    """Return the mask to add to the scores (batch, 1, 1 or queries, keys): `filled` where the given mask is
    zero. A mask of one number for each element of the batch is the number of its keys."""
    if mask.shape == (batch,):
        lengths = graph.op("Reshape", cast(graph, mask, "int64"), np.array([batch, 1, 1, 1]))
        seen = graph.op("Less", np.arange(keys).reshape(1, 1, 1, keys), lengths)
    elif mask.shape in ((batch, keys), (batch, queries, keys)):
        rows = 1 if mask.rank == 2 else queries
        seen = cast(graph, graph.op("Reshape", mask, np.array([batch, 1, rows, keys])), "bool")
    else:
        raise UnsupportedOperator(f"a mask of shape {mask.shape} isn't supported")
    return graph.op("Where", seen, np.array(0, dtype), np.array(filled, dtype))


def _causal_mask(queries: int, keys: int, past: int, dtype: str) -> np.ndarray:
    """Return the mask that hides later keys from each query but the last. The first one follows `past` keys.

    ONNX Runtime hides them by the least number, whatever hides padding.
    """
    seen = np.arange(keys)[None, :] <= np.arange(queries)[:, None] + past
    seen[-1] = True
    return np.where(seen, 0, np.finfo(dtype).min).astype(numpy_dtype(dtype)).reshape(1, 1, queries, keys)


def _attend_masked(
    graph: Graph,
    node: Node,
    query: Value,
    key: Value,
    value: Value,
    mask: Value | None,
    attention_bias: Value | None,
    past: int,
) -> Value:
    """Return the attention of a Microsoft operator, with joined heads. Its attributes give the scale and the
    mask. The first `past` keys come from earlier calls."""
    batch, _, queries, size = query.shape
    keys = key.shape[2]
    filled = float(node.attributes.get("mask_filter_value", -10000.0))
    added: list[Value] = []
    if mask is not None:
        added.append(_padding_mask(graph, mask, batch, queries, keys, filled, query.dtype))
    if attention_bias is not None:
        added.append(attention_bias)
    if node.attributes.get("unidirectional", 0):
        added.append(graph.value(_causal_mask(queries, keys, past, query.dtype)))
    scale = float(node.attributes.get("scale", 0.0)) or size**-0.5
    return join_heads(graph, attend(graph, query, key, value, scale, added))


def _multi_head_attention(graph: Graph, node: Node) -> Sequence[Value | None]:
    heads = int(node.attributes["num_heads"])
    query, key, value, bias = (node.optional(position) for position in range(4))
    if query is None or key is None or value is None or query.rank != 3:
        raise UnsupportedOperator("packed queries, keys and values aren't supported")
    if bias is not None:
        widths = [
            query.shape[-1],
            key.shape[-1] if key.rank == 3 else 0,
            value.shape[-1] if value.rank == 3 else 0,
        ]
        if not all(widths):
            raise UnsupportedOperator("a bias of keys in heads isn't supported")
        parts = graph.ops("Split", 3, bias, np.array(widths), axis=0)
        query, key, value = (
            graph.op("Add", each, part) for each, part in zip((query, key, value), parts, strict=True)
        )
    query, key, value = (heads_of(graph, each, heads) for each in (query, key, value))
    past_key, past_value = node.optional(6), node.optional(7)
    if node.optional(8) is not None or node.optional(9) is not None or node.wants(3):
        raise UnsupportedOperator("shared buffers of the past aren't supported")
    if past_key is not None and past_value is not None:
        key = graph.op("Concat", past_key, key, axis=2)
        value = graph.op("Concat", past_value, value, axis=2)
    past = 0 if past_key is None else past_key.shape[2]
    attended = _attend_masked(graph, node, query, key, value, node.optional(4), node.optional(5), past)
    return [attended, key, value]


def _attention(graph: Graph, node: Node) -> Sequence[Value | None]:
    """Import Microsoft's Attention. One product computes queries, keys and values."""
    heads = int(node.attributes["num_heads"])
    data, weight, bias, mask, past, attention_bias, past_length = (node.optional(k) for k in range(7))
    if data is None or weight is None or past_length is not None or node.attributes.get("do_rotary", 0):
        raise UnsupportedOperator("shared buffers and rotary embeddings aren't supported")
    product = graph.op("MatMul", data, weight)
    product = product if bias is None else graph.op("Add", product, bias)
    third = weight.shape[1] // 3
    sizes = np.array(node.attributes.get("qkv_hidden_sizes", [third] * 3))
    query, key, value = (
        heads_of(graph, each, heads) for each in graph.ops("Split", 3, product, sizes, axis=2)
    )
    if past is not None:
        shape = np.array(past.shape[1:])
        past_key, past_value = (
            graph.op("Reshape", each, shape) for each in graph.ops("Split", 2, past, np.array([1, 1]), axis=0)
        )
        key = graph.op("Concat", past_key, key, axis=2)
        value = graph.op("Concat", past_value, value, axis=2)
    present = None
    if node.wants(1):
        axis = np.array([0])
        present = graph.op("Concat", *(graph.op("Unsqueeze", each, axis) for each in (key, value)), axis=0)
    earlier = 0 if past is None else past.shape[3]
    return [_attend_masked(graph, node, query, key, value, mask, attention_bias, earlier), present]


def _group_query_attention(graph: Graph, node: Node) -> Sequence[Value | None]:
    """Import Microsoft's GroupQueryAttention. Several heads of queries share a head of keys and values. Past
    keys come before new ones, and no query sees a later key."""
    heads, key_heads = int(node.attributes["num_heads"]), int(node.attributes["kv_num_heads"])
    query, key, value, past_key, past_value, lengths, total = (node.optional(k) for k in range(7))
    if (
        query is None
        or lengths is None
        or total is None
        or any(node.optional(k) is not None for k in (9, 11))
    ):
        raise UnsupportedOperator("its kind of inputs isn't supported")
    if any(node.attributes.get(name, 0) for name in ("smooth_softmax", "k_quant_type", "v_quant_type")):
        raise UnsupportedOperator("smooth softmax and quantized caches aren't supported")
    if key is None or value is None:
        size = query.shape[2] // (heads + 2 * key_heads)
        widths = np.array([heads * size, key_heads * size, key_heads * size])
        query, key, value = graph.ops("Split", 3, query, widths, axis=2)
    query = heads_of(graph, query, heads)
    key, value = (heads_of(graph, each, key_heads) for each in (key, value))
    batch, _, new, size = query.shape
    past = 0 if past_key is None else past_key.shape[2]
    keys = max(past, int(total.known("the total length of the sequence").reshape(())))
    # For each element of the batch: its number of earlier keys, and the position of each key.
    counts = graph.op("Reshape", cast(graph, lengths, "int64"), np.array([batch, 1, 1, 1]))
    before = graph.op("Sub", counts, np.int64(new - 1))
    if node.attributes.get("do_rotary", 0):
        cosine, sine = node.input(7), node.input(8)
        places = graph.op(
            "Add", graph.op("Reshape", before, np.array([batch, 1])), np.arange(new).reshape(1, new)
        )
        interleaved = int(node.attributes.get("rotary_interleaved", 0))
        query, key = (_rotate(graph, each, cosine, sine, places, interleaved) for each in (query, key))
    steps = np.arange(keys).reshape(1, 1, keys, 1)
    present = [
        _appended(graph, old, fresh, before, steps) for old, fresh in ((past_key, key), (past_value, value))
    ]
    repeats = np.arange(heads) // (heads // key_heads)
    shared_key, shared_value = (graph.op("Gather", each, repeats, axis=1) for each in present)
    places = graph.op("Add", before, np.arange(new).reshape(1, 1, new, 1))
    columns = np.arange(keys).reshape(1, 1, 1, keys)
    seen = graph.op("LessOrEqual", columns, places)
    window = int(node.attributes.get("local_window_size", -1))
    if window > 0:
        near = graph.op("Less", graph.op("Sub", places, np.int64(window)), columns)
        seen = graph.op("And", seen, near)
    lowest = np.array(np.finfo(np.float16 if query.dtype == "float16" else np.float32).min, query.dtype)
    added = [graph.op("Where", seen, np.array(0, query.dtype), lowest)]
    attention_bias = node.optional(10)
    added += [] if attention_bias is None else [attention_bias]
    scale = float(node.attributes.get("scale", 0.0)) or size**-0.5
    softcap = float(node.attributes.get("softcap", 0.0))
    result = attend(graph, query, shared_key, shared_value, scale, added, softcap)
    return [join_heads(graph, result), *present]


def _appended(graph: Graph, old: Value | None, fresh: Value, before: Value, steps: np.ndarray) -> Value:
    """Return the keys or values of the past, `before` of them, followed by the new ones and by zeros.

    `before` is (batch, 1, 1, 1), `steps` the places of the result, (1, 1, keys, 1).
    """
    batch, heads, new, size = fresh.shape
    keys = steps.shape[2]
    offsets = graph.op("Clip", graph.op("Sub", steps, before), np.int64(0), np.int64(new - 1))
    places = graph.op("Expand", offsets, np.array([batch, heads, keys, size]))
    moved = graph.op("GatherElements", fresh, places, axis=2)
    end = graph.op("Add", before, np.int64(new))
    moved = graph.op("Where", graph.op("Less", steps, end), moved, np.array(0, moved.dtype))
    if old is None:
        return moved
    padding = np.array([0, 0, 0, 0, 0, 0, keys - old.shape[2], 0])
    padded = graph.op("Pad", old, padding) if padding.any() else old
    return graph.op("Where", graph.op("Less", steps, before), padded, moved)


def _rotate(graph: Graph, value: Value, cosine: Value, sine: Value, places: Value, interleaved: int) -> Value:
    """Rotate each pair of features by the angle of its position; `places` are (batch, length)."""
    width = 2 * cosine.shape[-1]
    return graph.op(
        "RotaryEmbedding",
        value,
        cosine,
        sine,
        places,
        interleaved=interleaved,
        rotary_embedding_dim=0 if width == value.shape[-1] else width,
        opset=23,
    )


def _rotary_embedding(graph: Graph, node: Node) -> Value:
    """Import Microsoft's RotaryEmbedding of (batch, length, width) or of separate heads. Positions count from
    an offset."""
    data, places, cosine, sine = (node.input(position) for position in range(4))
    heads, width = (
        int(node.attributes.get("num_heads", 0)),
        int(node.attributes.get("rotary_embedding_dim", 0)),
    )
    size = data.shape[-1] if data.rank == 4 else (data.shape[-1] // heads if heads else 2 * cosine.shape[-1])
    apart = heads_of(graph, data, data.shape[-1] // size if data.rank == 3 else 0)
    batch, _, length, _ = apart.shape
    if places.size == 1:
        places = graph.op(
            "Add", graph.op("Reshape", places, np.array([1, 1])), np.arange(length).reshape(1, length)
        )
        places = graph.op("Expand", places, np.array([batch, length]))
    if width and width != 2 * cosine.shape[-1]:
        raise UnsupportedOperator("the cache of angles doesn't fit rotary_embedding_dim")
    turned = _rotate(graph, apart, cosine, sine, places, int(node.attributes.get("interleaved", 0)))
    return turned if data.rank == 4 else join_heads(graph, turned)


def _mixed_attention(graph: Graph, node: Node) -> Sequence[Value | None] | None:
    """Compute ONNX's Attention in the widest of its inputs' types. If they have one type, leave it to its
    function body."""
    query, value = node.input(0), node.input(2)
    dtypes = {each.dtype for each in node.inputs if each is not None and "float" in each.dtype}
    if len(dtypes) == 1:
        return None
    wide = "float64" if "float64" in dtypes else "float32"
    inputs = [
        cast(graph, each, wide) if each is not None and "float" in each.dtype else each
        for each in node.inputs
    ]
    attributes = dict(node.attributes)
    results = graph.ops("Attention", len(node.outputs), *inputs, opset=node.opset, **attributes)
    types = query.dtype, query.dtype, value.dtype, query.dtype
    return [cast(graph, result, dtype) for result, dtype in zip(results, types, strict=False)]


_MICROSOFT = "com.microsoft"
CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "Attention"): _mixed_attention,
    (_MICROSOFT, "Attention"): _attention,
    (_MICROSOFT, "GroupQueryAttention"): _group_query_attention,
    (_MICROSOFT, "MultiHeadAttention"): _multi_head_attention,
    (_MICROSOFT, "RotaryEmbedding"): _rotary_embedding,
}
