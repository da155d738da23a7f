"""Find the shapes that a batch gives a model's inputs, in a child process (`compiler.sandbox.child` says
why).

The child's reply is a line of JSON: the shapes, or why there are none.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import BinaryIO

from compiler.importing.batch import batch_shapes
from compiler.importing.spec import ModelError, Shape
from compiler.sandbox.child import (
    BASE_MEMORY_BYTES,
    MEMORY_PER_MODEL_BYTE,
    describe_error,
    describe_exit,
    enter_sandbox,
    redirect_stdout,
    run_child,
)

READ_S = 60.0


def find_batch_shapes(data: bytes, shapes: Mapping[str, Shape], batch: int) -> dict[str, Shape]:
    """Return the shapes of `compiler.importing.batch.batch_shapes`. Raises ModelError."""
    header = {
        "shapes": {name: list(shape) for name, shape in shapes.items()},
        "batch": batch,
        "memory_bytes": BASE_MEMORY_BYTES + MEMORY_PER_MODEL_BYTE * len(data),
    }
    request = json.dumps(header).encode() + b"\n" + data
    reply, status = run_child("compiler.sandbox.batch", request, READ_S)
    try:
        fields = json.loads(reply)
        refused = str(fields["refused"])
        found = {str(name): tuple(map(int, shape)) for name, shape in fields["shapes"].items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        end = f"it takes longer than {READ_S:g} s" if status is None else f"it {describe_exit(status)}"
        raise ModelError(f"the model's inputs can't be read: {end}") from error
    if refused:
        raise ModelError(refused)
    return found


# The child's side


def _serve(source: BinaryIO, reply: BinaryIO) -> None:
    header = json.loads(source.readline())
    enter_sandbox(header["memory_bytes"])
    shapes = {name: tuple(shape) for name, shape in header["shapes"].items()}
    answer: dict[str, object] = {"shapes": {}, "refused": ""}
    try:
        answer["shapes"] = batch_shapes(source.read(), shapes, header["batch"])
    except ModelError as error:
        answer["refused"] = str(error)
    except Exception as error:
        answer["refused"] = describe_error(error)
    reply.write(json.dumps(answer).encode())
    reply.flush()


if __name__ == "__main__":
    with redirect_stdout() as stream:
        _serve(sys.stdin.buffer, stream)
    os._exit(0)
