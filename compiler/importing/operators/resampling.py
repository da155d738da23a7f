"""Convert Resize in all modes, and operators that interpolate between pixels."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax, tirx

from compiler.importing.onnx_graph import Converter, Graph
from compiler.importing.operators.quantized import cast
from compiler.importing.values import Node, UnsupportedOperator, Value
from compiler.tvmscript import T

Floats = NDArray[np.float64]
# With more taps, a sum is computed as a product with a matrix.
MAX_TAPS = 8
# The most samples along an axis of a bin, as a box of infinite size would never end.
MAX_SAMPLES = 1 << 12


@dataclass(frozen=True)
class _Axis:
    """The resizing of an axis: by `scale`, to `extent`; `roi` is where tf_crop_and_resize begins and ends."""

    axis: int
    scale: float
    extent: int
    roi: tuple[float, float]


def _resize(graph: Graph, node: Node) -> Value | None:
    """Resize one axis after the other. Each element of the result is a sum of some elements along the axis,
    with constant weights:

        y[i] = sum_k w[i,k] x[at[i,k]]

    Modes that TVM's resize2d computes as ONNX does are left to TVM, which also converts their layouts.
    """
    data = node.input(0)
    mode = str(node.attributes.get("mode", "nearest"))
    how = str(node.attributes.get("coordinate_transformation_mode", "half_pixel"))
    axes = _axes(node, data)
    if _suits_tvm(node, data, axes, mode, how):
        return None
    outside = None
    is_wide = data.dtype in ("float32", "float64") or mode == "nearest"
    result = data if is_wide else cast(graph, data, "float32")
    for each in axes:
        before = result.shape[each.axis]
        if each.extent == before and each.scale == 1.0 and how != "tf_crop_and_resize":
            continue
        kind = np.float64 if data.dtype == "float64" else np.float32
        places = _places(each, before, how, kind).astype(np.float64)
        if how == "tf_crop_and_resize":
            is_outside = (places < 0) | (places > before - 1)
            shape = [-1 if k == each.axis else 1 for k in range(data.rank)]
            is_outside = is_outside.reshape(shape)
            outside = is_outside if outside is None else outside | is_outside
        at, weights = _taps(node, places, before, each.scale, mode)
        result = _weighted_sum(graph, result, each.axis, at, weights)
    if outside is not None and outside.any():
        value = np.array(node.attributes.get("extrapolation_value", 0.0), result.dtype)
        result = graph.op("Where", outside, value, result)
    # ONNX Runtime truncates fractions, unless it filters.
    if "int" in data.dtype and mode != "nearest" and node.attributes.get("antialias", 0):
        result = graph.op("Round", result)
    return cast(graph, result, data.dtype)


def _axes(node: Node, data: Value) -> list[_Axis]:
    """Return how each axis is resized, from scales or sizes."""
    axes = [axis % data.rank for axis in node.attributes.get("axes", range(data.rank))]
    roi_value, scales_value, sizes_value = (node.optional(k) for k in (1, 2, 3))
    roi = [] if roi_value is None else [float(number) for number in roi_value.known("the region").ravel()]
    rois = {
        axis: (roi[k], roi[k + len(axes)]) if len(roi) == 2 * len(axes) else (0.0, 1.0)
        for k, axis in enumerate(axes)
    }
    if sizes_value is not None and sizes_value.size:
        sizes = [int(number) for number in sizes_value.known("the sizes").ravel()]
        scales = [size / data.shape[axis] for axis, size in zip(axes, sizes, strict=True)]
        policy = str(node.attributes.get("keep_aspect_ratio_policy", "stretch"))
        if policy != "stretch":
            scale = min(scales) if policy == "not_larger" else max(scales)
            sizes = [math.floor(scale * data.shape[axis] + 0.5) for axis in axes]
            scales = [scale] * len(axes)
    elif scales_value is not None:
        scales = [float(number) for number in scales_value.known("the scales").ravel()]
        how = str(node.attributes.get("coordinate_transformation_mode", "half_pixel"))
        lengths = [
            data.shape[axis] * ((rois[axis][1] - rois[axis][0]) if how == "tf_crop_and_resize" else 1.0)
            for axis in axes
        ]
        # In float32, as ONNX has it: 5 elements times 1.4 are 7.
        sizes = [
            math.floor(np.float32(length) * np.float32(scale))
            for length, scale in zip(lengths, scales, strict=True)
        ]
    else:
        raise UnsupportedOperator("it has neither scales nor sizes")
    return [
        _Axis(axis, scale, size, rois[axis]) for axis, scale, size in zip(axes, scales, sizes, strict=True)
    ]


def _suits_tvm(node: Node, data: Value, axes: Sequence[_Axis], mode: str, how: str) -> bool:
    """Return whether TVM's resize2d computes what ONNX defines."""
    changed = [each for each in axes if each.extent != data.shape[each.axis]]
    if data.rank != 4 or data.dtype != "float32" or any(each.axis < 2 for each in changed):
        return False
    if len(axes) != 4 or node.attributes.get("antialias", 0):
        return False
    if any(each.scale != each.extent / data.shape[each.axis] for each in axes):
        return False
    if mode == "linear":
        return how in ("half_pixel", "asymmetric") and all(each.scale >= 1 for each in axes)
    nearest = str(node.attributes.get("nearest_mode", "round_prefer_floor"))
    if mode == "nearest":
        return (how, nearest) == ("asymmetric", "floor") and all(each.scale >= 1 for each in axes)
    return False


def _places(each: _Axis, before: int, how: str, kind: Any) -> NDArray[np.floating[Any]]:
    """Return the input coordinate of every element of the result, with the roundings of `kind`.

    ONNX Runtime's coordinates are float32, which affects the nearest element.
    """
    after, scale = each.extent, kind(each.scale)
    at: NDArray[np.floating[Any]] = np.arange(after).astype(kind)
    match how:
        case "half_pixel":
            return (at + 0.5) / scale - 0.5
        case "half_pixel_symmetric":
            adjustment = kind(after / (before * scale))
            return kind(before / 2) * (1 - adjustment) + (at + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (at + 0.5) / scale - 0.5 if after > 1 else np.zeros(after, kind)
        case "align_corners":
            length = kind(before * scale)
            return at * (before - 1) / (length - 1) if length != 1 else np.zeros(after, kind)
        case "asymmetric":
            return at / scale
        case "tf_half_pixel_for_nn":
            return (at + 0.5) / scale
        case "tf_crop_and_resize":
            begin, end = kind(each.roi[0]), kind(each.roi[1])
            if after > 1:
                return begin * (before - 1) + at * (end - begin) * (before - 1) / (after - 1)
            return np.full(after, 0.5 * (begin + end) * (before - 1), kind)
    raise UnsupportedOperator(f"coordinate_transformation_mode {how} isn't known")


def _taps(
    node: Node, places: Floats, before: int, scale: float, mode: str
) -> tuple[NDArray[np.int64], Floats]:
    """Return, for every coordinate, the indices of the summed elements and their weights, (places, taps)
    each."""
    if mode == "nearest":
        rounding = str(node.attributes.get("nearest_mode", "round_prefer_floor"))
        chosen = _ROUNDINGS[rounding](places)
        return np.clip(chosen, 0, before - 1).astype(np.int64)[:, None], np.ones((len(places), 1))
    shrink = min(scale, 1.0) if node.attributes.get("antialias", 0) else 1.0
    a = float(node.attributes.get("cubic_coeff_a", -0.75))
    radius = (2 if mode == "cubic" else 1) / shrink
    first = np.floor(places - radius).astype(np.int64) + 1
    at = first[:, None] + np.arange(math.ceil(2 * radius))[None, :]
    distance = np.abs(at - places[:, None]) * shrink
    if mode == "cubic":
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
    elif mode == "linear":
        weights = np.maximum(1 - distance, 0.0)
    else:
        raise UnsupportedOperator(f"mode {mode} isn't known")
    if node.attributes.get("exclude_outside", 0):
        weights = np.where((at < 0) | (at >= before), 0.0, weights)
    if shrink < 1 or node.attributes.get("exclude_outside", 0):
        weights = weights / weights.sum(axis=1, keepdims=True)
    return np.clip(at, 0, before - 1), weights


_ROUNDINGS: Mapping[str, Callable[[Floats], Floats]] = {
    "round_prefer_floor": lambda places: np.ceil(places - 0.5),
    "round_prefer_ceil": lambda places: np.floor(places + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _weighted_sum(graph: Graph, data: Value, axis: int, at: NDArray[np.int64], weights: Floats) -> Value:
    if at.shape[1] == 1 and (weights == 1).all():
        return graph.op("Gather", data, at[:, 0].copy(), axis=axis)
    if at.shape[1] > MAX_TAPS:
        matrix = np.zeros((data.shape[axis], len(at)), data.dtype)
        np.add.at(matrix, (at, np.arange(len(at))[:, None]), weights)
        order = [*(k for k in range(data.rank) if k != axis), axis]
        product = graph.op("MatMul", graph.op("Transpose", data, perm=order), matrix)
        return graph.op("Transpose", product, perm=[order.index(k) for k in range(data.rank)])
    total: Value | None = None
    shape = [-1 if k == axis else 1 for k in range(data.rank)]
    for tap in range(at.shape[1]):
        part = graph.op("Gather", data, at[:, tap].copy(), axis=axis)
        part = graph.op("Mul", part, weights[:, tap].reshape(shape).astype(data.dtype))
        total = part if total is None else graph.op("Add", total, part)
    assert total is not None
    return total


@dataclass(frozen=True)
class _Corner:
    """One of the four elements around each place: its value and its weight."""

    value: Value
    weight: Value


def corners(graph: Graph, data: Value, y: Value, x: Value) -> list[_Corner]:
    """Read an image (batch, channels, height, width) around places (batch, places): values (batch, channels,
    places) and weights (batch, 1, places). Elements outside of the image are zero."""
    batch, channels, height, width = data.shape
    count = y.shape[1]
    flat = graph.op("Reshape", data, np.array([batch, channels, height * width]))
    one = np.array(1, y.dtype)
    top, left = graph.op("Floor", y), graph.op("Floor", x)
    down, right = graph.op("Sub", y, top), graph.op("Sub", x, left)
    found = []
    for is_lower in (False, True):
        for is_right in (False, True):
            row = graph.op("Add", top, one) if is_lower else top
            column = graph.op("Add", left, one) if is_right else left
            weight = graph.op(
                "Mul",
                down if is_lower else graph.op("Sub", one, down),
                right if is_right else graph.op("Sub", one, right),
            )
            inside = _inside(graph, row, height), _inside(graph, column, width)
            safe_row = _index(graph, row, height)
            safe_column = _index(graph, column, width)
            at = graph.op("Add", graph.op("Mul", safe_row, np.int64(width)), safe_column)
            at = graph.op("Unsqueeze", at, np.array([1]))
            values = graph.op(
                "GatherElements", flat, graph.op("Expand", at, np.array([batch, channels, count])), axis=2
            )
            weight = graph.op("Where", graph.op("And", *inside), weight, np.array(0, weight.dtype))
            found.append(_Corner(values, graph.op("Unsqueeze", weight, np.array([1]))))
    return found


def _inside(graph: Graph, places: Value, extent: int) -> Value:
    zero, last = np.array(0, places.dtype), np.array(extent - 1, places.dtype)
    return graph.op("And", graph.op("GreaterOrEqual", places, zero), graph.op("LessOrEqual", places, last))


def _index(graph: Graph, places: Value, extent: int) -> Value:
    bounds = np.array(0, places.dtype), np.array(extent - 1, places.dtype)
    return cast(graph, graph.op("Clip", places, *bounds), "int64")


def between(graph: Graph, data: Value, y: Value, x: Value) -> Value:
    """Interpolate an image at coordinates; the result is (batch, channels, places)."""
    parts = [graph.op("Mul", corner.value, corner.weight) for corner in corners(graph, data, y, x)]
    return graph.op("Sum", *parts)


def _roi_align(graph: Graph, node: Node) -> Value:
    """Take a known number of samples from each bin of a box."""
    samples = int(node.attributes.get("sampling_ratio", 0))
    is_max = str(node.attributes.get("mode", "avg")) == "max"
    default = "half_pixel" if node.opset >= 16 else "output_half_pixel"
    aligned = str(node.attributes.get("coordinate_transformation_mode", default)) == "half_pixel"
    if not samples:
        return _roi_align_adaptive(graph, node, is_max, aligned)
    data, rois, batches = (node.input(position) for position in range(3))
    height, width = (int(node.attributes.get(f"output_{name}", 1)) for name in ("height", "width"))
    scale = np.array(node.attributes.get("spatial_scale", 1.0), rois.dtype)
    offset = np.array(0.5 if aligned else 0.0, rois.dtype)
    scaled = graph.op("Sub", graph.op("Mul", rois, scale), offset)
    x1, y1, x2, y2 = graph.ops("Split", 4, scaled, np.ones(4, np.int64), axis=1)

    def grid(begin: Value, end: Value, bins: int) -> Value:
        length = graph.op("Sub", end, begin)
        if not aligned:
            length = graph.op("Max", length, np.array(1, rois.dtype))
        steps = (np.arange(bins * samples) + 0.5) / (bins * samples)
        return graph.op("Add", begin, graph.op("Mul", length, steps.astype(rois.dtype)[None, :]))

    count, channels = rois.shape[0], data.shape[1]
    rows, columns = height * samples, width * samples
    every = np.array([count, rows, columns])
    y = graph.op("Expand", graph.op("Unsqueeze", grid(y1, y2, height), np.array([2])), every)
    x = graph.op("Expand", graph.op("Unsqueeze", grid(x1, x2, width), np.array([1])), every)
    y, x = (graph.op("Reshape", each, np.array([count, rows * columns])) for each in (y, x))
    edges = [np.array(0, rois.dtype), *(np.array(extent - 1, rois.dtype) for extent in data.shape[2:])]
    outside = graph.op("Or", _outside(graph, y, data.shape[2]), _outside(graph, x, data.shape[3]))
    y, x = graph.op("Clip", y, edges[0], edges[1]), graph.op("Clip", x, edges[0], edges[2])
    images = graph.op("Gather", data, batches, axis=0)
    parts = [graph.op("Mul", corner.value, corner.weight) for corner in corners(graph, images, y, x)]
    # ONNX's maximum is over the weighted corners, not over the samples.
    sampled = graph.op("Max" if is_max else "Sum", *parts)
    hidden = graph.op("Unsqueeze", outside, np.array([1]))
    sampled = graph.op("Where", hidden, np.array(0, data.dtype), sampled)
    split = graph.op("Reshape", sampled, np.array([count, channels, height, samples, width, samples]))
    return graph.op("ReduceMax" if is_max else "ReduceMean", split, np.array([3, 5]), keepdims=0)


def _roi_align_adaptive(graph: Graph, node: Node, is_max: bool, aligned: bool) -> Value:
    """Take a sample for each pixel in each bin of a box. An empty box has no samples, and its result is
    zero."""
    data, rois, batches = (node.input(position) for position in range(3))
    height, width = (int(node.attributes.get(f"output_{name}", 1)) for name in ("height", "width"))
    wide = [cast(graph, value, "float32") for value in (data, rois)]
    kernel = _adaptive_bins(
        (*data.shape, rois.shape[0]),  # type: ignore[arg-type]
        (height, width),
        float(node.attributes.get("spatial_scale", 1.0)),
        is_max,
        aligned,
    )
    name = graph.builder.add_func(kernel, "roi_align")
    arguments = relax.Tuple([value.expr for value in (*wide, cast(graph, batches, "int64"))])
    kind = relax.TensorType((rois.shape[0], data.shape[1], height, width), "float32")
    return cast(graph, graph.emit(relax.call_tir(name, arguments, kind)), data.dtype)


def _adaptive_bins(
    extents: tuple[int, int, int, int, int],
    bins: tuple[int, int],
    scale: float,
    is_max: bool,
    aligned: bool,
) -> Any:
    """Return a TIR function that pools boxes (boxes, 4) of images (batch, channels, height, width), with a
    sample for each pixel of a bin."""
    num_images, channels, height, width, count = extents
    rows, columns = bins
    offset = 0.5 if aligned else 0.0

    @T.prim_func(s_tir=True, private=True)
    def roi_align(a: T.handle, b: T.handle, c: T.handle, d: T.handle) -> None:
        images = T.match_buffer(a, (num_images, channels, height, width), "float32")
        rois = T.match_buffer(b, (count, 4), "float32")
        batches = T.match_buffer(c, (count,), "int64")
        pooled = T.match_buffer(d, (count, channels, rows, columns), "float32")
        box = T.sblock_alloc_buffer((count, channels, rows, columns, 4), "float32", scope="local")
        samples = T.sblock_alloc_buffer((count, channels, rows, columns, 4), "int32", scope="local")
        for i, j, k, m in T.grid(count, channels, rows, columns):
            with T.sblock("pool"):
                n, h, r, s = T.axis.remap("SSSS", [i, j, k, m])
                T.reads(images[0:num_images, h, 0:height, 0:width], rois[n, 0:4], batches[n])
                T.writes(pooled[n, h, r, s], box[n, h, r, s, 0:4], samples[n, h, r, s, 0:4])
                box[n, h, r, s, 0] = rois[n, 1] * T.float32(scale) - T.float32(offset)
                box[n, h, r, s, 1] = rois[n, 0] * T.float32(scale) - T.float32(offset)
                box[n, h, r, s, 2] = _length(rois[n, 1], rois[n, 3], scale, offset, aligned) / T.float32(rows)
                box[n, h, r, s, 3] = _length(rois[n, 0], rois[n, 2], scale, offset, aligned) / T.float32(
                    columns
                )
                samples[n, h, r, s, 0] = _sample_count(box[n, h, r, s, 2])
                samples[n, h, r, s, 1] = _sample_count(box[n, h, r, s, 3])
                pooled[n, h, r, s] = T.float32(0)
                samples[n, h, r, s, 2] = 0
                while samples[n, h, r, s, 2] < samples[n, h, r, s, 0] * samples[n, h, r, s, 1]:
                    samples[n, h, r, s, 3] = samples[n, h, r, s, 2] % samples[n, h, r, s, 1]
                    pooled[n, h, r, s] = _pooled(
                        pooled[n, h, r, s],
                        _between_pixels(
                            images,
                            (T.max(T.min(batches[n], num_images - 1), 0), h),
                            box[n, h, r, s, 0]
                            + box[n, h, r, s, 2]
                            * (
                                T.Cast("float32", r)
                                + (
                                    T.Cast("float32", samples[n, h, r, s, 2] // samples[n, h, r, s, 1])
                                    + T.float32(0.5)
                                )
                                / T.Cast("float32", samples[n, h, r, s, 0])
                            ),
                            box[n, h, r, s, 1]
                            + box[n, h, r, s, 3]
                            * (
                                T.Cast("float32", s)
                                + (T.Cast("float32", samples[n, h, r, s, 3]) + T.float32(0.5))
                                / T.Cast("float32", samples[n, h, r, s, 1])
                            ),
                            is_max,
                        ),
                        samples[n, h, r, s, 2],
                        is_max,
                    )
                    samples[n, h, r, s, 2] = samples[n, h, r, s, 2] + 1
                if not is_max:
                    pooled[n, h, r, s] = pooled[n, h, r, s] / T.Cast(
                        "float32", T.max(samples[n, h, r, s, 0] * samples[n, h, r, s, 1], 1)
                    )

    return roi_align


def _length(begin: Any, end: Any, scale: float, offset: float, aligned: bool) -> Any:
    length = (end * tirx.const(scale, "float32") - tirx.const(offset, "float32")) - (
        begin * tirx.const(scale, "float32") - tirx.const(offset, "float32")
    )
    return length if aligned else tirx.max(length, tirx.const(1.0, "float32"))


def _sample_count(size: Any) -> Any:
    """Return how many samples a bin gets: one for each pixel of its size."""
    most = tirx.const(float(MAX_SAMPLES), "float32")
    zero = tirx.const(0.0, "float32")
    return tirx.Cast("int32", tirx.max(tirx.min(tirx.ceil(size), most), zero))


def _pooled(before: Any, sample: Any, number: Any, is_max: bool) -> Any:
    if not is_max:
        return before + sample
    return tirx.Select(number == 0, sample, tirx.max(before, sample))


def _between_pixels(images: Any, image: tuple[Any, Any], y: Any, x: Any, is_max: bool) -> Any:
    """Return an image's value at a coordinate: the sum, or the maximum, of the four weighted pixels around
    it. It is zero more than a pixel outside of the image."""
    height, width = (int(extent) for extent in images.shape[2:])
    zero, one = (tirx.const(number, "float32") for number in (0.0, 1.0))
    inside = tirx.all(
        y >= -one,
        y <= tirx.const(float(height), "float32"),
        x >= -one,
        x <= tirx.const(float(width), "float32"),
    )

    def corners(place: Any, extent: int) -> tuple[Any, Any, Any]:
        last = tirx.const(float(extent - 1), "float32")
        clipped = tirx.min(tirx.max(place, zero), last)
        low = tirx.Cast("int32", clipped)
        return low, tirx.min(low + 1, extent - 1), clipped - tirx.Cast("float32", low)

    top, bottom, down = corners(y, height)
    left, right, across = corners(x, width)
    weighted = [
        images[image[0], image[1], row, column] * (vertical * horizontal)
        for row, vertical in ((top, one - down), (bottom, down))
        for column, horizontal in ((left, one - across), (right, across))
    ]
    combine: Callable[[Any, Any], Any] = tirx.max if is_max else lambda a, b: a + b
    return tirx.if_then_else(inside, functools.reduce(combine, weighted), zero)


def _outside(graph: Graph, places: Value, extent: int) -> Value:
    low, high = np.array(-1, places.dtype), np.array(extent, places.dtype)
    return graph.op("Or", graph.op("Less", places, low), graph.op("Greater", places, high))


def _deform_conv(graph: Graph, node: Node) -> Value:
    """Read every element of the window at its offset, then multiply by the weights."""
    data, weight, offset = (node.input(position) for position in range(3))
    if data.rank != 4:
        raise UnsupportedOperator("only images are supported")
    batch, channels, _, _ = data.shape
    kernel = weight.shape[2:]
    strides, dilations = (node.attributes.get(name, [1, 1]) for name in ("strides", "dilations"))
    pads = node.attributes.get("pads", [0, 0, 0, 0])
    groups, offset_groups = (int(node.attributes.get(name, 1)) for name in ("group", "offset_group"))
    out = offset.shape[2:]
    taps = kernel[0] * kernel[1]
    split = graph.op("Reshape", offset, np.array([batch, offset_groups, taps, 2, *out]))
    base = [
        (np.arange(out[k]) * strides[k] - pads[k])[None, :] + (np.arange(kernel[k]) * dilations[k])[:, None]
        for k in range(2)
    ]
    places = []
    for k in range(2):
        shape = [kernel[0], 1, out[0], 1] if k == 0 else [1, kernel[1], 1, out[1]]
        fixed = np.broadcast_to(base[k].reshape(shape), [*kernel, *out]).reshape(1, 1, taps, *out)
        part = graph.op("Slice", split, np.array([k]), np.array([k + 1]), np.array([3]))
        part = graph.op("Squeeze", part, np.array([3]))
        moved = graph.op("Add", part, fixed.astype(data.dtype))
        places.append(graph.op("Reshape", moved, np.array([batch * offset_groups, taps * out[0] * out[1]])))
    images = graph.op(
        "Reshape", data, np.array([batch * offset_groups, channels // offset_groups, *data.shape[2:]])
    )
    values = between(graph, images, *places)
    shape = [batch, offset_groups, channels // offset_groups, taps, *out]
    values = graph.op("Reshape", values, np.array(shape))
    mask = node.optional(4)
    if mask is not None:
        values = graph.op(
            "Mul", values, graph.op("Reshape", mask, np.array([batch, offset_groups, 1, taps, *out]))
        )
    # (batch, groups, outputs, terms) x (batch, groups, terms, places)
    per_group = weight.shape[0] // groups
    terms = channels // groups * taps
    columns = graph.op("Reshape", values, np.array([batch, groups, terms, out[0] * out[1]]))
    filters = graph.op("Reshape", weight, np.array([1, groups, per_group, terms]))
    result = graph.op("MatMul", filters, columns)
    result = graph.op("Reshape", result, np.array([batch, weight.shape[0], *out]))
    bias = node.optional(3)
    return (
        result
        if bias is None
        else graph.op("Add", result, graph.op("Reshape", bias, np.array([1, -1, 1, 1])))
    )


def _grid_sample(graph: Graph, node: Node) -> Value | None:
    """Sample in float32, or in float64 if the data or the grid is float64. The result has the type of the
    data."""
    data, grid = node.input(0), node.input(1)
    if grid.shape[-1] != data.rank - 2:
        raise UnsupportedOperator(
            f"its grid has {grid.shape[-1]} coordinates for {data.rank - 2} axes of the data"
        )
    if node.attributes.get("padding_mode") == "reflection" and node.attributes.get("align_corners", 0):
        ones = [axis for axis in range(2, data.rank) if data.shape[axis] == 1]
        if ones:
            # An axis of one element can't be reflected between middles. A copy of the element beside it gives
            # the same result.
            for axis in ones:
                data = graph.op("Concat", data, data, axis=axis)
            return graph.op("GridSample", data, grid, opset=node.opset, **node.attributes)
    if data.dtype == grid.dtype == "float32":
        return None
    if "float" not in data.dtype and str(node.attributes.get("mode", "linear")) != "nearest":
        raise UnsupportedOperator(
            f"values between elements of {data.dtype} are no {data.dtype}: cast the data to floats"
        )
    wide = "float64" if "float64" in (data.dtype, grid.dtype) or "64" in data.dtype else "float32"
    if data.dtype == grid.dtype == wide:
        return None
    attributes: dict[str, Any] = dict(node.attributes)
    inputs = (cast(graph, value, wide) for value in (data, grid))
    return cast(graph, graph.op("GridSample", *inputs, opset=node.opset, **attributes), data.dtype)


def _affine_grid(graph: Graph, node: Node) -> Value:
    """Multiply the places of an image's pixels, (x, y, 1) or (x, y, z, 1), with a matrix for each image."""
    matrices = node.input(0)
    size = [int(extent) for extent in node.input(1).known("the size")]
    is_aligned = bool(node.attributes.get("align_corners", 0))

    def middles(extent: int) -> NDArray[np.float64]:
        if is_aligned:
            # In ONNX Runtime, a single position is at the end.
            return np.linspace(-1, 1, extent) if extent > 1 else np.ones(1)
        return (2 * np.arange(extent) + 1) / extent - 1

    places = np.meshgrid(*map(middles, size[2:]), indexing="ij")
    flat = np.stack([*(axis.ravel() for axis in reversed(places)), np.ones(places[0].size)], axis=1)
    wide = matrices if matrices.dtype == "float64" else cast(graph, matrices, "float32")
    turned = graph.op("Transpose", wide, perm=[0, 2, 1])
    product = graph.op("MatMul", flat.astype(wide.dtype), turned)
    shape = [matrices.shape[0], *size[2:], len(size) - 2]
    return cast(graph, graph.op("Reshape", product, np.array(shape)), matrices.dtype)


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "AffineGrid"): _affine_grid,
    ("", "DeformConv"): _deform_conv,
    ("", "GridSample"): _grid_sample,
    ("", "Resize"): _resize,
    ("", "RoiAlign"): _roi_align,
}
