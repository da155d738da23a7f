"""Convert operators with sliding windows to forms that TVM imports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from compiler.importing.onnx_graph import Converter, Graph
from compiler.importing.operators.quantized import bounds, cast
from compiler.importing.values import Node, Value


def _conv_transpose(graph: Graph, node: Node) -> Value | None:
    """Compute the padding of a transposed convolution with a given output shape, which TVM doesn't do."""
    data, weight = node.input(0), node.input(1)
    attributes = dict(node.attributes)
    wanted = attributes.pop("output_shape", None)
    automatic = str(attributes.pop("auto_pad", "NOTSET"))
    if wanted is None and automatic in ("NOTSET", "VALID"):
        return None
    count = data.rank - 2
    strides, dilations = (attributes.get(name, [1] * count) for name in ("strides", "dilations"))
    extra = attributes.get("output_padding", [0] * count)
    wanted = (
        [extent * stride for extent, stride in zip(data.shape[2:], strides, strict=True)]
        if wanted is None
        else wanted
    )
    wanted = wanted[-count:]
    begins, ends, added = [], [], list(extra)
    for k in range(count):
        covered = (
            strides[k] * (data.shape[2 + k] - 1) + extra[k] + (weight.shape[2 + k] - 1) * dilations[k] + 1
        )
        total = covered - wanted[k]
        if total < 0:
            # ONNX Runtime fills up to a given shape. It takes no padding away that `auto_pad` would need.
            added[k] -= total if "output_shape" in node.attributes else 0
            total = 0
        small, large = total // 2, total - total // 2
        # Only with SAME_UPPER, an odd element is added at the end.
        begins.append(small if automatic == "SAME_UPPER" else large)
        ends.append(large if automatic == "SAME_UPPER" else small)
    attributes |= {"pads": [*begins, *ends], "output_padding": added}
    return graph.op("ConvTranspose", *node.inputs, **attributes)


def _col2im(graph: Graph, node: Node) -> Value:
    """Sum overlapping blocks, as a transposed convolution whose weights put every element of a block in its
    position. A sum of booleans is whether any is true."""
    data = node.input(0)
    if data.dtype == "bool":
        summed = graph.op("Col2Im", cast(graph, data, "int32"), *node.inputs[1:], **node.attributes)
        return cast(graph, summed, "bool")
    image, block = (node.input(k).known("the shapes of image and blocks").tolist() for k in (1, 2))
    count = len(block)
    strides, dilations = (node.attributes.get(name, [1] * count) for name in ("strides", "dilations"))
    pads = node.attributes.get("pads", [0] * 2 * count)
    size = int(np.prod(block))
    channels = data.shape[1] // size
    covered = [dilations[k] * (block[k] - 1) + 1 for k in range(count)]
    grid = [(image[k] + pads[k] + pads[count + k] - covered[k]) // strides[k] + 1 for k in range(count)]
    weight = np.zeros((channels * size, channels, *block), data.dtype)
    each = np.arange(channels * size)
    weight[(each, each // size, *np.unravel_index(each % size, block))] = 1
    blocks = graph.op("Reshape", data, np.array([data.shape[0], channels * size, *grid]))
    extra = [
        image[k] + pads[k] + pads[count + k] - ((grid[k] - 1) * strides[k] + covered[k]) for k in range(count)
    ]
    return graph.op(
        "ConvTranspose", blocks, weight, strides=strides, dilations=dilations, pads=pads, output_padding=extra
    )


def _max_pool(graph: Graph, node: Node) -> list[Value] | None:
    """Import a maximum and its index in the data. The windows' elements are compared one after the other."""
    data = node.input(0)
    automatic = str(node.attributes.get("auto_pad", "NOTSET"))
    if not node.wants(1):
        return [_explicitly_padded(graph, node)] if automatic.startswith("SAME") else None
    count = data.rank - 2
    kernel = node.attributes["kernel_shape"]
    strides, dilations = (node.attributes.get(name, [1] * count) for name in ("strides", "dilations"))
    begins, ends = _padding(node, data)
    pads = [*begins, *ends]
    low = np.array(-np.inf if "float" in data.dtype else bounds(data.dtype)[0]).astype(data.dtype)
    padded = graph.op("Pad", data, np.array([0, 0, *pads[:count], 0, 0, *pads[count:]]), low)
    sizes = [
        (padded.shape[2 + k] - dilations[k] * (kernel[k] - 1) - 1) // strides[k] + 1 for k in range(count)
    ]
    plane = int(np.prod(data.shape[2:]))
    channels = np.arange(data.shape[0] * data.shape[1]).reshape(*data.shape[:2], *[1] * count) * plane
    order: Literal["C", "F"] = "F" if node.attributes.get("storage_order", 0) else "C"
    largest: Value | None = None
    places: Value | None = None
    for offset in np.ndindex(*kernel):
        begin = [offset[k] * dilations[k] for k in range(count)]
        end = [begin[k] + (sizes[k] - 1) * strides[k] + 1 for k in range(count)]
        part = graph.op(
            "Slice", padded, np.array(begin), np.array(end), np.arange(2, data.rank), np.array(strides)
        )
        at = [np.arange(sizes[k]) * strides[k] + begin[k] - pads[k] for k in range(count)]
        at = [np.clip(at[k], 0, data.shape[2 + k] - 1) for k in range(count)]
        place = np.ravel_multi_index(list(np.ix_(*at)), data.shape[2:], order=order) + channels
        if largest is None or places is None:
            largest, places = part, graph.value(place)
            continue
        is_larger = graph.op("Greater", part, largest)
        if "float" in data.dtype:
            is_larger = graph.op("Or", is_larger, graph.op("IsNaN", part))
        places = graph.op("Where", is_larger, place, places)
        largest = graph.op("Where", is_larger, part, largest)
    assert largest is not None
    assert places is not None
    return [largest, places]


def _explicitly_padded(graph: Graph, node: Node) -> Value:
    """Make the padding of `auto_pad` explicit, because TVM's is wrong for SAME_LOWER."""
    attributes: dict[str, Any] = dict(node.attributes)
    del attributes["auto_pad"]
    attributes.pop("ceil_mode", None)
    begins, ends = _padding(node, node.input(0))
    return graph.op(node.kind, node.input(0), opset=node.opset, **attributes | {"pads": [*begins, *ends]})


def _average_pool(graph: Graph, node: Node) -> Value | None:
    automatic = str(node.attributes.get("auto_pad", "NOTSET"))
    return _explicitly_padded(graph, node) if automatic.startswith("SAME") else None


def _padding(node: Node, data: Value) -> tuple[list[int], list[int]]:
    """Return the padding before and after each spatial axis with which all windows of a pooling are complete.

    `auto_pad` and `ceil_mode` become explicit. In ONNX, no window begins in the padding after the data.
    """
    count = data.rank - 2
    kernel = node.attributes["kernel_shape"]
    strides, dilations = (node.attributes.get(name, [1] * count) for name in ("strides", "dilations"))
    pads = node.attributes.get("pads", [0] * 2 * count)
    automatic = str(node.attributes.get("auto_pad", "NOTSET"))
    begins, ends = [], []
    for k, extent in enumerate(data.shape[2:]):
        covered = dilations[k] * (kernel[k] - 1) + 1
        before, after = (pads[k], pads[count + k]) if automatic == "NOTSET" else (0, 0)
        if automatic.startswith("SAME"):
            total = max((-(-extent // strides[k]) - 1) * strides[k] + covered - extent, 0)
            small, large = total // 2, total - total // 2
            before, after = (large, small) if automatic == "SAME_LOWER" else (small, large)
        elif node.attributes.get("ceil_mode", 0):
            windows = -(-(extent + before + after - covered) // strides[k]) + 1
            windows -= (windows - 1) * strides[k] >= extent + before
            after = max(after, (windows - 1) * strides[k] + covered - extent - before)
        begins.append(before)
        ends.append(after)
    return begins, ends


def _lp_pool(graph: Graph, node: Node) -> Value:
    """(sum of |x|^p)^(1/p) over each window, as an average of whole windows."""
    data = node.input(0)
    begins, ends = _padding(node, data)
    p = np.array(node.attributes.get("p", 2), data.dtype)
    powers = graph.op("Pow", graph.op("Abs", data), p)
    if any((*begins, *ends)):
        powers = graph.op("Pad", powers, np.array([0, 0, *begins, 0, 0, *ends]))
    kernel = node.attributes["kernel_shape"]
    chosen: dict[str, Any] = {name: node.attributes.get(name) for name in ("strides", "dilations")}
    mean = graph.op("AveragePool", powers, kernel_shape=kernel, **chosen)
    total = graph.op("Mul", mean, np.array(np.prod(kernel), data.dtype))
    return graph.op("Pow", total, 1 / p)


def _max_unpool(graph: Graph, node: Node) -> Value | None:
    """Put each value at its index in the default shape, which may be the beginning of a larger one."""
    shape = node.optional(2)
    if shape is None:
        return None
    data, places = node.input(0), node.input(1)
    count = data.rank - 2
    kernel = node.attributes["kernel_shape"]
    strides, pads = node.attributes.get("strides", [1] * count), node.attributes.get("pads", [0] * 2 * count)
    extents = [
        (data.shape[2 + k] - 1) * strides[k] - pads[k] - pads[count + k] + kernel[k] for k in range(count)
    ]
    inner = [*data.shape[:2], *extents]
    flat = [graph.op("Reshape", value, np.array([-1])) for value in (places, data)]
    empty = np.zeros(int(np.prod(inner)), data.dtype)
    filled = graph.op("Reshape", graph.op("ScatterElements", empty, *flat, axis=0), np.array(inner))
    wanted = shape.known("the output shape").tolist()
    ends = [wide - extent for wide, extent in zip(wanted, inner, strict=True)]
    return graph.op("Pad", filled, np.array([*[0] * data.rank, *ends]))


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "AveragePool"): _average_pool,
    ("", "Col2Im"): _col2im,
    ("", "ConvTranspose"): _conv_transpose,
    ("", "LpPool"): _lp_pool,
    ("", "MaxPool"): _max_pool,
    ("", "MaxUnpool"): _max_unpool,
}
