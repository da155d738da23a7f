"""Compute the shapes of a model's inputs for a batch size, if the file leaves the leading dimension open."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from typing import IO, TypeGuard

from compiler.importing.spec import ModelError, Shape
from core.exported_programs import MalformedProgram, program_inputs
from core.model_format import ModelFormat, UnknownFormat, input_dimensions, recognise


def batch_shapes(file: IO[bytes], shapes: Mapping[str, Shape], batch: int) -> dict[str, Shape]:
    """Return `shapes`, completed for inputs whose leading dimension the file leaves open. That dimension
    becomes the batch wherever the file names it. Weights are skipped, not read.

    Raises ModelError if no leading dimension is open, or if other dimensions are open, too.
    """
    inputs = _input_dimensions(file)
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


def _input_dimensions(file: IO[bytes]) -> dict[str, tuple[int | str, ...]]:
    """Return the dimensions of a file's inputs, except those that follow from others. Raises ModelError."""
    try:
        format_ = recognise(file)
        file.seek(0)
        if format_ is ModelFormat.ONNX:
            return input_dimensions(file)
        if format_ is ModelFormat.ONNX_ARCHIVE:
            with tarfile.open(fileobj=file) as archive:
                first = archive.next()
                model = archive.extractfile(first) if first is not None else None
                return input_dimensions(io.BytesIO(model.read() if model is not None else b""))
        if format_ is ModelFormat.EXPORTED_PROGRAM:
            program = program_inputs(file)
            return {name: dims for name, dims in program.dimensions.items() if name not in program.computed}
    except (UnknownFormat, MalformedProgram) as error:
        raise ModelError(str(error)) from error
    except (ValueError, tarfile.TarError) as error:
        raise ModelError("the file is truncated or not an ONNX model: it is no ONNX protobuf") from error
    raise ModelError(
        f"the inputs of a file in the format {format_} have fixed shapes: export the model with the batch "
        "that you need, and leave --batch out"
    )


def _is_fixed(dim: int | str) -> TypeGuard[int]:
    return isinstance(dim, int) and dim > 0


def _extent(dim: int | str, symbols: Mapping[str, int], otherwise: int | None) -> int | None:
    return dim if _is_fixed(dim) else symbols.get(str(dim), otherwise)
