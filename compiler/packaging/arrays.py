"""Arrays by name in .npz files, which may be strangers': read them in a child process only."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Collection, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from compiler.importing.spec import NARROW, ModelError, TensorSpec, first_line, is_out_of_memory
from compiler.importing.values import numpy_dtype

Array = NDArray[Any]
MAX_DATA_BYTES = 4 << 30
# So many arrays of a file are named in a message.
_NAMED = 8


def read_arrays(file: IO[bytes], names: Collection[str], what: str) -> dict[str, Array]:
    """Return the arrays of these names from an .npz file; others are left unread. `what` begins messages.

    Raises ModelError.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
            for name in names:
                if name not in entries:
                    found = ", ".join(list(entries)[:_NAMED]) or "none"
                    raise ModelError(
                        f"{what} has no array '{name}', which is an input of the model; its arrays are: "
                        f"{found}. Save it by numpy.savez, with an array for each input"
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
    except Exception as error:  # damaged archives and headers raise whatever they like
        if is_out_of_memory(error):
            raise ModelError(f"{what} doesn't fit into memory: give fewer samples") from error
        raise ModelError(
            f"{what} can't be read: {first_line(error)}. Save it by numpy.savez, without pickled objects"
        ) from error


def check_type(array: Array, spec: TensorSpec, what: str) -> None:
    """Raise ModelError for an array of another type than files have for the input."""
    if str(array.dtype) != (wanted := plain_type(spec.dtype)):
        raise ModelError(
            f"array '{spec.name}' of {what} is {array.dtype}, and the model's input takes {wanted}: convert "
            "the array"
        )


def plain_type(dtype: str) -> str:
    """Return NumPy's type that files have values of a type in: the type itself, or a wider one."""
    if dtype == "bfloat16" or (dtype.startswith("float") and dtype in NARROW):
        return "float32"
    if dtype in NARROW:
        return "uint8" if dtype.startswith("u") else "int8"
    return dtype


def inputs_of(file: IO[bytes], specs: Sequence[TensorSpec], what: str) -> list[Array]:
    """Return the arrays of a model's inputs from an .npz file, of the inputs' types. Raises ModelError for
    arrays that don't have the types and the shapes of the inputs."""
    arrays = read_arrays(file, [spec.name for spec in specs], what)
    for spec in specs:
        check_type(arrays[spec.name], spec, what)
        if arrays[spec.name].shape != spec.shape:
            raise ModelError(
                f"array '{spec.name}' of {what} has the shape {arrays[spec.name].shape}, and the model's "
                f"input {spec.shape}: give one set of inputs"
            )
    return [arrays[spec.name].astype(numpy_dtype(spec.dtype)) for spec in specs]


def as_npz(specs: Sequence[TensorSpec], arrays: Sequence[Array]) -> bytes:
    """Return an .npz file of a model's outputs. Types that NumPy lacks become wider ones."""
    named = {
        spec.name: array.astype(plain_type(spec.dtype)) for spec, array in zip(specs, arrays, strict=True)
    }
    buffer = io.BytesIO()
    # Not numpy.savez, which has parameters that an output may be called like.
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in named.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                np.lib.format.write_array(stream, array, allow_pickle=False)
    return buffer.getvalue()
