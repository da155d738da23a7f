"""Compare an untrusted library with its model (`compiler.verifying.library_outputs`) in a sandboxed child
process (`compiler.children.child`).

The child replies with a line of JSON for each set of inputs, or with one line if the model can't be compared.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from compiler.children.child import (
    BASE_MEMORY_BYTES,
    MAX_REPLY_BYTES,
    MEMORY_PER_MODEL_BYTE,
    describe_error,
    describe_exit,
    run_child,
    serve,
    size_of,
    write_line,
)
from compiler.importing.formats.reading import read_model
from compiler.importing.spec import ModelError, NoReference, Shape
from compiler.packaging.artifact import LIBRARY, Manifest
from compiler.verifying.library_outputs import Check, compare_library

CHECK_S = 600.0
MEMORY_BYTES = BASE_MEMORY_BYTES + (8 << 30)
MAX_PROBLEM_CHARS = 8192

Array = NDArray[Any]


def check_library(
    model: IO[bytes], library: IO[bytes], manifest: Manifest, own: Sequence[Mapping[str, Array]]
) -> list[Check]:
    """Compare a library's outputs with its model's. Raises ModelError; NoReference without a reference
    runtime.
    """
    with tempfile.TemporaryFile() as inputs:
        for arrays in own:
            buffer = io.BytesIO()
            given: dict[str, Any] = dict(arrays)
            np.savez(buffer, **given)
            inputs.write(len(buffer.getvalue()).to_bytes(8, "little") + buffer.getvalue())
        inputs.flush()
        files = (model, library, inputs)
        memory_bytes = MEMORY_BYTES + MEMORY_PER_MODEL_BYTE * size_of(model)
        request = {
            "memory_bytes": memory_bytes,
            "files": [file.fileno() for file in files],
            "manifest": manifest.to_json(),
        }
        child = run_child(
            "compiler.children.library_check", json.dumps(request).encode(), CHECK_S, memory_bytes, files
        )
        with child as (reply, status):
            lines = reply.read(MAX_REPLY_BYTES).splitlines()
    checks = []
    for line in lines:
        fields: dict[str, Any] = json.loads(line)
        if "problem" in fields:
            kind = ModelError if fields["is_model"] else NoReference
            raise kind(str(fields["problem"])[:MAX_PROBLEM_CHARS])
        checks.append(Check(**fields))
    if status is None:
        raise NoReference(f"it takes longer than {CHECK_S:g} s")
    if status:
        raise ModelError(f"the library or the model {describe_exit(status)}")
    return checks


# The child's side


def _answer(request: dict[str, Any], reply: BinaryIO) -> None:
    manifest = Manifest.from_json(request["manifest"])
    model, library, inputs = (os.fdopen(number, "rb") for number in request["files"])
    try:
        for check in check_here(model, library, manifest, list(_read_inputs(inputs))):
            write_line(reply, asdict(check))
    except (ModelError, NoReference) as error:
        write_line(reply, {"problem": str(error), "is_model": isinstance(error, ModelError)})
    except Exception as error:
        write_line(reply, {"problem": describe_error(error), "is_model": False})


def _shapes_of_file(manifest: Manifest) -> dict[str, Shape]:
    """Return the shapes of the inputs of a library's model.

    A decoder's file has no number of earlier tokens, and its buffers may have their rows at another axis.
    """
    shapes = {spec.name: spec.shape for spec in manifest.inputs}
    if manifest.cache is None:
        return shapes
    del shapes[manifest.cache.position]
    shapes |= {one.name: one.shape for one in manifest.cache.derived if one.name == manifest.cache.position}
    for name, axis in manifest.cache.moved.items():
        *others, rows = shapes[name]
        shapes[name] = (*others[:axis], rows, *others[axis:])
    return shapes


def check_here(
    model: IO[bytes], library: IO[bytes], manifest: Manifest, own: Sequence[Mapping[str, Array]]
) -> Iterator[Check]:
    """Compare a library in this process, which it can compromise. Raises ModelError and NoReference."""
    file = read_model(model, _shapes_of_file(manifest))
    with tempfile.TemporaryDirectory(prefix="tunefarm-") as folder:
        path = Path(folder) / LIBRARY
        with path.open("wb") as copy:
            shutil.copyfileobj(library, copy)
        yield from compare_library(file, path, manifest, own)


def _read_inputs(file: IO[bytes]) -> Iterator[dict[str, Array]]:
    file.seek(0)
    while size := file.read(8):
        with np.load(io.BytesIO(file.read(int.from_bytes(size, "little")))) as arrays:
            yield dict(arrays)


if __name__ == "__main__":
    serve(_answer)
