"""Samples of a model's inputs from an untrusted .npz file. Read it only in a child process."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import onnx
from numpy.typing import NDArray

from compiler.importing.onnx_file import OnnxFile
from compiler.importing.spec import ModelError
from compiler.packaging.arrays import check_type, read_arrays

Array = NDArray[Any]


@dataclass(frozen=True)
class Samples:
    """Samples of a model's inputs. Each sample is a slice of each array.

    A slice has `extents[name]` rows of the array. If that is 0, the slice is one row, without the row axis.
    """

    arrays: Mapping[str, Array]
    extents: Mapping[str, int]
    count: int

    @classmethod
    def read(cls, file: IO[bytes], model: OnnxFile, what: str) -> Samples:
        """Read the samples of an .npz file. Raises ModelError for data that doesn't fit the model's inputs.

        Either the samples lie along the first axis of each input, or each array has an additional first axis
        for the samples.
        """
        arrays = read_arrays(file, [spec.name for spec in model.inputs], what)
        declared = {value.name: _declared(value) for value in model.declared}
        specs = {spec.name: spec for spec in model.inputs}
        if not specs:
            raise ModelError("the model has no inputs to calibrate: leave out the calibration data")
        for name, array in arrays.items():
            check_type(array, specs[name], what)
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise ModelError(f"array '{name}' of {what} has NaN or an infinity: remove such samples")
        is_stacked = all(arrays[name].ndim == len(spec.shape) + 1 for name, spec in specs.items())
        extents, counts = {}, {}
        for name, spec in specs.items():
            shape = declared[name] or [None] * len(spec.shape)
            array = arrays[name]
            own = array.shape[1:] if is_stacked else (*shape[:1], *array.shape[1:])
            extents[name] = 0 if is_stacked else (shape[0] or 1) if shape else 1
            if len(own) != len(shape) or any(
                want not in (None, found) for want, found in zip(shape, own, strict=True)
            ):
                wanted = "(" + ", ".join("?" if extent is None else str(extent) for extent in shape) + ")"
                raise ModelError(
                    f"array '{name}' of {what} has the shape {array.shape}, and the model's input {wanted}: "
                    "join samples along the first axis, or stack them along a new first axis"
                )
            rows = array.shape[0] if array.ndim else 0
            if array.size == 0 or rows % max(extents[name], 1):
                raise ModelError(
                    f"array '{name}' of {what} has {rows} rows, and a sample takes {max(extents[name], 1)}: "
                    "give one or more whole samples"
                )
            counts[name] = rows // max(extents[name], 1)
        if len({*counts.values()}) > 1:
            listed = ", ".join(f"{count} of '{name}'" for name, count in counts.items())
            raise ModelError(
                f"{what} has different numbers of samples: {listed}. Give the same number for each input"
            )
        return cls(arrays, extents, next(iter(counts.values())))

    def first(self, most: int) -> Samples:
        return Samples(self.arrays, self.extents, min(self.count, most))

    def __iter__(self) -> Iterator[dict[str, Array]]:
        for number in range(self.count):
            yield {
                name: array[number : number + 1].reshape(array.shape[1:])
                if not (extent := self.extents[name])
                else array[number * extent : (number + 1) * extent]
                for name, array in self.arrays.items()
            }


def _declared(value: onnx.ValueInfoProto) -> Sequence[int | None] | None:
    """Return the extents of an input (None for an open one); None if it declares no shape."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    return [dim.dim_value if dim.dim_value > 0 else None for dim in tensor.shape.dim]
