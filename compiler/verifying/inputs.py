"""Draw typical inputs of models: images, ids, masks, positions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray

from compiler.importing.onnx_file import OnnxFile
from compiler.importing.spec import NARROW, TensorSpec
from compiler.importing.values import numpy_dtype

Array = NDArray[Any]
# Operators that pass their first input on: indices stay indices of the same range.
_HANDS_ON = {"Cast", "Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}
# Inputs of operators that are indices into the first input along an axis.
_INDEXES = {"Gather": 1, "GatherElements": 1, "EmbedLayerNormalization": 0, "RoiAlign": 2}
# Operators whose results aren't 0 if their inputs aren't.
_STAYS_NONZERO = {"Abs", "Concat", "Mul", "Neg", "Slice", "Split", "Tile"}
_DIVIDES = {"Div", "Mod"}
# Descriptions of the sets of inputs, for messages.
ORDINARY_SETS = ("floats around zero", "floats from 0 to 1")


def input_sets(file: OnnxFile) -> Iterable[dict[str, Array]]:
    """Yield inputs for an ONNX model as `drawn` does, with indices in range and divisors that aren't 0."""
    return drawn(file.inputs, index_extents(file), divisors(file))


def drawn(
    inputs: Iterable[TensorSpec], extents: Mapping[str, int], divisors: Collection[str] = ()
) -> Iterable[dict[str, Array]]:
    """Yield inputs by name, the same at every call: first floats around zero, then floats from 0 to 1 as in
    images. Masks hide the end of their sequences. An input in `extents` holds indices below its
    number there; an input in `divisors` holds numbers from 1 to 9, the first time of both signs.
    """
    for number in range(len(ORDINARY_SETS)):
        rng = np.random.default_rng(number)
        yield {
            spec.name: nonzero(spec, rng, both_signs=not number)
            if spec.name in divisors
            else _array(spec, extents.get(spec.name), number, rng)
            for spec in inputs
        }


def nonzero(spec: TensorSpec, rng: np.random.Generator, both_signs: bool) -> Array:
    """Return whole numbers up to 9, or to the type's greatest, without 0."""
    dtype = numpy_dtype(spec.dtype)
    most = min(9, int(ml_dtypes.iinfo(dtype).max)) if "int" in spec.dtype else 9  # type: ignore[no-untyped-call]
    sizes = rng.integers(1, most, spec.shape, endpoint=True)
    is_signed = both_signs and not spec.dtype.startswith(("u", "bool"))
    signs = rng.choice([-1, 1], spec.shape) if is_signed else 1
    return np.asarray(sizes * signs).astype(dtype)


def _array(spec: TensorSpec, extent: int | None, number: int, rng: np.random.Generator) -> Array:
    dtype = numpy_dtype(spec.dtype)
    if "mask" in spec.name.lower():
        kept = np.arange(spec.shape[-1] if spec.shape else 1) < max(1, (spec.shape or (1,))[-1] * 3 // 4)
        return np.broadcast_to(kept if number else np.ones_like(kept), spec.shape).astype(dtype)
    if spec.dtype == "bool":
        return rng.integers(0, 2, spec.shape).astype(dtype)
    if "int" in spec.dtype:
        if extent is None and (spec.dtype in ("int8", "uint8") or spec.dtype in NARROW):
            limits = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
            return rng.integers(limits.min, limits.max, spec.shape, endpoint=True).astype(dtype)
        return rng.integers(0, extent or 2, spec.shape).astype(dtype)
    values = rng.uniform(0, 1, spec.shape) if number else rng.standard_normal(spec.shape)
    return values.astype(dtype)


def index_extents(file: OnnxFile) -> Mapping[str, int]:
    """Return the number of indexed parts for each input that holds indices, by name."""
    graph = file.proto.graph
    shapes = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    shapes |= {name: tuple(array.shape) for name, array in file.weights.items()}
    shapes |= {spec.name: spec.shape for spec in file.inputs}
    found: dict[str, int] = {}
    consumers = _consumers(graph)
    for spec in file.inputs:
        reached = _reached(consumers, spec, _HANDS_ON)
        extents = [extent for node, name, _ in reached for extent in _extents_of(node, name, shapes)]
        if extents:
            found[spec.name] = min(extents)
    return found


def divisors(file: OnnxFile) -> frozenset[str]:
    """Return the names of the inputs by which integers are divided."""
    consumers = _consumers(file.proto.graph)
    return frozenset(
        spec.name
        for spec in file.inputs
        if any(
            node.op_type in _DIVIDES and node.input[1] == name and "int" in dtype
            for node, name, dtype in _reached(consumers, spec, _HANDS_ON | _STAYS_NONZERO)
        )
    )


def _consumers(graph: onnx.GraphProto) -> Mapping[str, Sequence[onnx.NodeProto]]:
    found: defaultdict[str, list[onnx.NodeProto]] = defaultdict(list)
    for node in graph.node:
        for name in node.input:
            found[name].append(node)
    return found


def _reached(
    consumers: Mapping[str, Sequence[onnx.NodeProto]], spec: TensorSpec, hands_on: Collection[str]
) -> Iterator[tuple[onnx.NodeProto, str, str]]:
    """Yield (node, name, element type) for all nodes that read an input or a value that operators in
    `hands_on` make of it."""
    waiting, seen = [(spec.name, spec.dtype)], {spec.name}
    while waiting:
        name, dtype = waiting.pop()
        for node in consumers.get(name, ()):
            yield node, name, dtype
            if node.op_type not in hands_on or (node.op_type in _HANDS_ON and node.input[0] != name):
                continue
            to = next((one.i for one in node.attribute if node.op_type == "Cast" and one.name == "to"), 0)
            passed_on = str(onnx.helper.tensor_dtype_to_np_dtype(to)) if to else dtype
            waiting += [(output, passed_on) for output in node.output if output not in seen]
            seen.update(node.output)


def _extents_of(node: onnx.NodeProto, name: str, shapes: Mapping[str, tuple[int, ...]]) -> list[int]:
    position = _INDEXES.get(node.op_type)
    if position is None or len(node.input) <= position or node.input[position] != name:
        return []
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0)
    data = node.input[2] if node.op_type == "EmbedLayerNormalization" else node.input[0]
    shape = shapes.get(data, ())
    return [shape[axis]] if -len(shape) <= axis < len(shape) and shape[axis] > 0 else []
