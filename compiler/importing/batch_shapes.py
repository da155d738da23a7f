"""Compute the shapes of a model's inputs for a batch size, if the file leaves the leading dimension open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, TypeGuard

from compiler.importing.spec import ModelError, Shape
from core.model_format import input_dimensions


def batch_shapes(file: IO[bytes], shapes: Mapping[str, Shape], batch: int) -> dict[str, Shape]:
    """Return `shapes`, completed for inputs whose leading dimension the .onnx file leaves open. That
    dimension becomes the batch wherever the file names it. Weights are skipped, not read.

    Raises ModelError if no leading dimension is open, or if other dimensions are open, too.
    """
    try:
        inputs = input_dimensions(file)
    except ValueError as error:
        raise ModelError("the file is truncated or not an ONNX model: it is no ONNX protobuf") from error
    leading = {name: dims[0] for name, dims in inputs.items() if dims}
    open_inputs = [name for name, dim in leading.items() if not _is_fixed(dim) and name not in shapes]
    if not open_inputs and not shapes:
        fixed = ", ".join(f"{name} begins with {dim}" for name, dim in leading.items())
        raise ModelError(
            f"the model fixes its batch ({fixed or 'no input has a shape'}): export it with a dynamic first "
            f"dimension, or leave the batch of {batch} out"
        )
    symbols = {str(leading[name]): batch for name in open_inputs if leading[name]}
    found = dict(shapes)
    for name, dims in inputs.items():
        if name in shapes or all(map(_is_fixed, dims)):
            continue
        extents = [_extent(dim, symbols, batch if at == 0 else None) for at, dim in enumerate(dims)]
        if any(extent is None for extent in extents):
            shape = ",".join(str(extent or 1) for extent in extents)
            raise ModelError(
                f"input '{name}' leaves more open than the batch: give its whole shape with "
                f"--shape {name}={shape} (one number per dimension)"
            )
        found[name] = tuple(extent for extent in extents if extent is not None)
    return found


def _is_fixed(dim: int | str) -> TypeGuard[int]:
    return isinstance(dim, int) and dim > 0


def _extent(dim: int | str, symbols: Mapping[str, int], otherwise: int | None) -> int | None:
    return dim if _is_fixed(dim) else symbols.get(str(dim), otherwise)
