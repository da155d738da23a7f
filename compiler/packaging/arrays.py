"""Read and write arrays in .npz files. Read untrusted files only in a child process."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Collection, Sequence
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

from compiler.importing.spec import NARROW, ModelError, TensorSpec, first_line, is_out_of_memory
from compiler.importing.values import numpy_dtype

Array = NDArray[Any]
MAX_DATA_BYTES = 4 << 30
# The most arrays that a message names.
_NAMED = 8
_ADVICE = {
    "input": "Save it by numpy.savez, with an array for each input",
    "output": "Run the inference again",
}


def read_arrays(
    file: IO[bytes], names: Collection[str], what: str, role: Literal["input", "output"] = "input"
) -> dict[str, Array]:
    """Return the named arrays of an .npz file, without reading the others. Raises ModelError.

    `what` names the file in messages, and `role` says what its arrays are.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
            for name in names:
                if name not in entries:
                    found = ", ".join(list(entries)[:_NAMED]) or "none"
                    raise ModelError(
                        f"{what} has no array '{name}', which is an {role} of the model; its arrays are: "
                        f"{found}. {_ADVICE[role]}"
                    )
            total = sum(entries[name].file_size for name in names)
            if total > MAX_DATA_BYTES:
                raise ModelError(
                    f"{what} has arrays of {total} bytes; the limit is {MAX_DATA_BYTES}: give fewer samples"
                )
            arrays = {}
            for name in names:
                with archive.open(entries[name]) as stream:
                    arrays[name] = np.asarray(np.lib.format.read_array(stream, allow_pickle=False))
            return arrays
    except ModelError:
        raise
    except Exception as error:  # damaged archives and headers may raise any exception class
        if is_out_of_memory(error):
            raise ModelError(f"{what} doesn't fit into memory: give fewer samples") from error
        raise ModelError(f"{what} can't be read: {first_line(error)}. {_ADVICE[role]}") from error


def check_type(array: Array, spec: TensorSpec, what: str) -> None:
    """Raise ModelError if an array doesn't have the type in which files store the input."""
    if str(array.dtype) != (wanted := plain_type(spec.dtype)):
        raise ModelError(
            f"array '{spec.name}' of {what} is {array.dtype}, and the model's input takes {wanted}: convert "
            "the array"
        )


def plain_type(dtype: str) -> str:
    """Return the NumPy type in which files store a type: the type itself, or a wider one."""
    if dtype == "bfloat16" or (dtype.startswith("float") and dtype in NARROW):
        return "float32"
    if dtype in NARROW:
        return "uint8" if dtype.startswith("u") else "int8"
    return dtype


def inputs_of(file: IO[bytes], specs: Sequence[TensorSpec], what: str) -> list[Array]:
    """Return the arrays of a model's inputs from an .npz file, converted to the inputs' types.

    Raises ModelError if an array has a wrong type or shape.
    """
    arrays = read_arrays(file, [spec.name for spec in specs], what)
    for spec in specs:
        check_type(arrays[spec.name], spec, what)
        if arrays[spec.name].shape != spec.shape:
            raise ModelError(
                f"array '{spec.name}' of {what} has the shape {arrays[spec.name].shape}, and the model's "
                f"input {spec.shape}: give one set of inputs of the model's shapes"
            )
    return [arrays[spec.name].astype(numpy_dtype(spec.dtype)) for spec in specs]


def as_npz(specs: Sequence[TensorSpec], arrays: Sequence[Array]) -> bytes:
    """Return an .npz file of a model's outputs. Types that NumPy lacks are stored as wider types."""
    named = {
        spec.name: array.astype(plain_type(spec.dtype)) for spec, array in zip(specs, arrays, strict=True)
    }
    buffer = io.BytesIO()
    # Not numpy.savez: an output may have the name of one of its parameters.
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in named.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)
    return buffer.getvalue()
