"""Read the outline of an untrusted model in a child process (`compiler.children.child` says why).

The child replies with one line of JSON: the outline, or the reason why it can't be read.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import IO, Any, BinaryIO

import msgspec

from compiler.children.child import (
    BASE_MEMORY_BYTES,
    describe_error,
    describe_exit,
    import_memory_bytes,
    run_on_model,
    serve,
    size_of,
    write_line,
)
from compiler.importing.formats.outlines import read_outline
from compiler.importing.spec import ModelError
from core.model_outline import ModelOutline

READ_S = 120.0
MAX_REPLY_BYTES = 4 << 20
MAX_PROBLEM_CHARS = 8192


def outline_model(data: bytes | IO[bytes]) -> ModelOutline:
    """Return the outline of a model's file. Raises ModelError."""
    memory_bytes = max(BASE_MEMORY_BYTES, import_memory_bytes(size_of(data)))
    request = {"memory_bytes": memory_bytes}
    with run_on_model("compiler.children.outlines", data, request, READ_S, memory_bytes) as (reply, status):
        text = reply.read(MAX_REPLY_BYTES)
    try:
        fields: dict[str, Any] = json.loads(text)
        refused = str(fields.get("refused", ""))
    except (ValueError, AttributeError, RecursionError) as error:
        end = f"it takes longer than {READ_S:g} s" if status is None else f"it {describe_exit(status)}"
        raise ModelError(f"the model's file can't be read: {end}") from error
    if refused:
        raise ModelError(refused[:MAX_PROBLEM_CHARS])
    try:
        return msgspec.convert(fields, ModelOutline)
    except msgspec.ValidationError as error:
        raise ModelError(f"the reply about the model's file is invalid: {error}") from error


# The child's side


def _answer(request: dict[str, Any], reply: BinaryIO) -> None:
    try:
        with os.fdopen(request["model"], "rb") as file:
            outline = read_outline(file)
    except ModelError as error:
        write_line(reply, {"refused": str(error)})
    except Exception as error:
        write_line(reply, {"refused": f"the model's file can't be read: {describe_error(error)}"})
    else:
        write_line(reply, asdict(outline))


if __name__ == "__main__":
    serve(_answer)
