"""The shapes that a batch gives the inputs of a model that leaves its leading dimension open."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from compiler.importing.onnx_file import parse
from compiler.importing.spec import ModelError, Shape


def batch_shapes(data: bytes, shapes: Mapping[str, Shape], batch: int) -> dict[str, Shape]:
    """Return `shapes` with those of the other inputs whose leading dimension the .onnx file leaves open: it
    becomes the batch, wherever the file names it.

    Raises ModelError when the file leaves none open, or other dimensions too.
    """
    graph = parse(data).graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in weights]
    leading = {value.name: dims[0] for value in inputs if (dims := value.type.tensor_type.shape.dim)}
    open_inputs = [name for name, dim in leading.items() if not dim.dim_value and name not in shapes]
    if not open_inputs and not shapes:
        fixed = ", ".join(f"{name} begins with {dim.dim_value}" for name, dim in leading.items())
        raise ModelError(
            f"the model fixes its batch ({fixed or 'no input has a shape'}): export it with a dynamic first "
            f"dimension, or leave the batch of {batch} out"
        )
    symbols = {leading[name].dim_param: batch for name in open_inputs if leading[name].dim_param}
    found = dict(shapes)
    for value in inputs:
        dims = value.type.tensor_type.shape.dim
        if value.name in shapes or all(dim.dim_value for dim in dims):
            continue
        extents = [_extent(dim, symbols, batch if at == 0 else None) for at, dim in enumerate(dims)]
        if any(extent is None for extent in extents):
            raise ModelError(
                f"input '{value.name}' leaves more open than the batch: give its whole shape with "
                f"--shape {value.name}={batch},3,224,224 (one number per dimension)"
            )
        found[value.name] = tuple(extent for extent in extents if extent is not None)
    return found


def _extent(
    dim: onnx.TensorShapeProto.Dimension, symbols: Mapping[str, int], otherwise: int | None
) -> int | None:
    return dim.dim_value or symbols.get(dim.dim_param, otherwise)
