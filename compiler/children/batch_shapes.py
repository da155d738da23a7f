"""Find a model's input shapes for a batch size, in a child process (`compiler.children.child` says why).

The child replies with one line of JSON: the shapes, or the reason why there are none.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import IO, Any, BinaryIO

from compiler.children.child import (
    BASE_MEMORY_BYTES,
    MAX_REPLY_BYTES,
    describe_error,
    describe_exit,
    run_on_model,
    serve,
    write_line,
)
from compiler.importing.batch_shapes import batch_shapes
from compiler.importing.spec import ModelError, Shape

READ_S = 60.0


def find_batch_shapes(data: bytes | IO[bytes], shapes: Mapping[str, Shape], batch: int) -> dict[str, Shape]:
    """Return the shapes of `compiler.importing.batch_shapes.batch_shapes`. Raises ModelError."""
    request = {"shapes": dict(shapes), "batch": batch, "memory_bytes": BASE_MEMORY_BYTES}
    child = run_on_model("compiler.children.batch_shapes", data, request, READ_S, BASE_MEMORY_BYTES)
    with child as (reply, status):
        text = reply.read(MAX_REPLY_BYTES)
    try:
        fields = json.loads(text)
        refused = str(fields["refused"])
        found = {str(name): tuple(map(int, shape)) for name, shape in fields["shapes"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        end = f"it takes longer than {READ_S:g} s" if status is None else f"it {describe_exit(status)}"
        raise ModelError(f"the model's inputs can't be read: {end}") from error
    if refused:
        raise ModelError(refused)
    return found


# The child's side


def _answer(request: dict[str, Any], reply: BinaryIO) -> None:
    shapes = {name: tuple(shape) for name, shape in request["shapes"].items()}
    found: dict[str, Shape] = {}
    refused = ""
    try:
        with os.fdopen(request["model"], "rb") as file:
            found = batch_shapes(file, shapes, request["batch"])
    except ModelError as error:
        refused = str(error)
    except Exception as error:
        refused = describe_error(error)
    write_line(reply, {"shapes": found, "refused": refused})


if __name__ == "__main__":
    serve(_answer)
