"""Fourier transforms, as products with matrices of sines and cosines, and mel filters."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from compiler.importing.onnx_graph import Converter, Graph
from compiler.importing.operators.quantized import cast
from compiler.importing.values import Node, UnsupportedOperator, Value


def _dft(graph: Graph, node: Node) -> Value:
    data, length = node.input(0), node.optional(1)
    if node.opset < 20:
        axis = int(node.attributes.get("axis", 1))
    else:
        given = node.optional(2)
        axis = -2 if given is None else int(given.known("the axis").reshape(()))
    inverse, onesided = (bool(node.attributes.get(name, 0)) for name in ("inverse", "onesided"))
    points = 2 * (data.shape[axis] - 1) if inverse and onesided else data.shape[axis]
    points = points if length is None else int(length.known("the length").reshape(()))
    frequencies = data.shape[axis]
    if inverse and onesided and (points < 1 or frequencies != points // 2 + 1):
        raise UnsupportedOperator(
            f"the inverse of {frequencies} frequencies has no {points} points: give {points // 2 + 1} of them"
        )
    return transform(graph, data, axis % data.rank, points, inverse, onesided)


def transform(graph: Graph, data: Value, axis: int, points: int, inverse: bool, onesided: bool) -> Value:
    """Return the transform along an axis. The last axis has real and imaginary parts; with one part, numbers
    are real. With `onesided`, the spectrum of real numbers is halved."""
    real, *imaginary = graph.ops("Split", data.shape[-1], data, np.ones(data.shape[-1], np.int64), axis=-1)
    parts = [_last(graph, _fitted(graph, part, axis, points), axis) for part in (real, *imaginary)]
    terms = parts[0].shape[-1]
    count = points // 2 + 1 if onesided and not inverse else points
    angles = 2 * np.pi * np.outer(np.arange(terms), np.arange(count)) / points
    sign = 1.0 if inverse else -1.0
    cosines, sines = np.cos(angles), sign * np.sin(angles)
    if inverse:
        cosines, sines = cosines / points, sines / points
    if inverse and onesided:
        # The other half has the conjugates of this one.
        twice = np.full((terms, 1), 2.0)
        twice[0] = 1.0
        if points % 2 == 0 and terms == points // 2 + 1:
            twice[-1] = 1.0
        cosines, sines = twice * cosines, twice * sines

    def product(part: Value, matrix: np.ndarray) -> Value:
        return graph.op("MatMul", part, matrix.astype(data.dtype))

    found = product(parts[0], cosines)
    if len(parts) > 1:
        found = graph.op("Sub", found, product(parts[1], sines))
    results = [_back(graph, found, axis)]
    if not (inverse and onesided):
        other = product(parts[0], sines)
        if len(parts) > 1:
            other = graph.op("Add", other, product(parts[1], cosines))
        results.append(_back(graph, other, axis))
    return results[0] if len(results) == 1 else graph.op("Concat", *results, axis=-1)


def _fitted(graph: Graph, part: Value, axis: int, points: int) -> Value:
    """Cut off a longer signal. A shorter one would be padded with zeros, which sums don't need."""
    if part.shape[axis] <= points:
        return part
    return graph.op("Slice", part, np.array([0]), np.array([points]), np.array([axis]))


def _last(graph: Graph, part: Value, axis: int) -> Value:
    """Swap an axis with the last axis, which has one element."""
    return graph.op("Transpose", part, perm=_swapped(part.rank, axis))


def _back(graph: Graph, part: Value, axis: int) -> Value:
    return graph.op("Transpose", part, perm=_swapped(part.rank, axis))


def _swapped(rank: int, axis: int) -> list[int]:
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    return order


def _stft(graph: Graph, node: Node) -> Value:
    """Transform overlapping frames of a signal, (batch, length, parts) -> (batch, frames, frequencies, 2)."""
    signal = node.input(0)
    step = int(node.input(1).known("the step").reshape(()))
    window, length = node.optional(2), node.optional(3)
    size = window.shape[0] if window is not None else 0
    points = int(length.known("the frame's length").reshape(())) if length is not None else size
    if signal.rank == 2:
        signal = graph.op("Unsqueeze", signal, np.array([2]))
    frames = 1 + (signal.shape[1] - points) // step
    places = np.arange(frames)[:, None] * step + np.arange(points)[None, :]
    framed = graph.op("Gather", signal, places, axis=1)
    if window is not None:
        framed = graph.op("Mul", framed, graph.op("Reshape", window, np.array([1, 1, -1, 1])))
    return transform(graph, framed, 2, points, False, bool(node.attributes.get("onesided", 1)))


def _mel_weight_matrix(graph: Graph, node: Node) -> Value | None:
    """Compute a matrix of another type in float32, because ONNX Runtime folds no other type."""
    edges = [node.input(position) for position in (3, 4)]
    to = int(node.attributes.get("output_datatype", onnx.TensorProto.FLOAT))
    if to == onnx.TensorProto.FLOAT and all(edge.dtype == "float32" for edge in edges):
        return None
    for position in range(5):
        node.input(position).known("its inputs")
    matrix = graph.op("MelWeightMatrix", *node.inputs[:3], *(cast(graph, edge, "float32") for edge in edges))
    return graph.op("Cast", matrix, to=to)


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "DFT"): _dft,
    ("", "MelWeightMatrix"): _mel_weight_matrix,
    ("", "STFT"): _stft,
}
