"""Compare an imported model with another runtime of its format (`compiler.verifying`), in a child process
(`compiler.children.child` says why). The child replies with a line of JSON for every set of inputs whose
outputs agree. A last line names a difference, or the reason why the model can't be compared.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any, BinaryIO

from compiler.children.child import (
    BASE_MEMORY_BYTES,
    MAX_REPLY_BYTES,
    MEMORY_PER_MODEL_BYTE,
    describe_error,
    describe_exit,
    run_on_model,
    serve,
    size_of,
    write_line,
)
from compiler.importing.formats.reading import read_model
from compiler.importing.spec import ModelError, NoReference, Shape
from compiler.target import detect_device
from compiler.verifying.imported import verify_file

VERIFY_S = 300.0
# For the untuned build, and for all intermediate values during the search for the first that differs.
MEMORY_BYTES = BASE_MEMORY_BYTES + (8 << 30)
MAX_PROBLEM_CHARS = 8192


@dataclass(frozen=True)
class Verification:
    """`unverified` says why an imported model could not be compared with its file; "" if it was. `note` names
    a difference that the standard allows.
    """

    unverified: str = ""
    note: str = ""


def verify_import(
    data: bytes | IO[bytes], shapes: Mapping[str, Shape], target: str, timeout_s: float = VERIFY_S
) -> Verification:
    """Compare a model, imported for a target, with its file. Raises ModelError if the outputs differ."""
    memory_bytes = MEMORY_BYTES + MEMORY_PER_MODEL_BYTE * size_of(data)
    request = {"shapes": dict(shapes), "memory_bytes": memory_bytes, "target": target}
    with run_on_model("compiler.children.verification", data, request, timeout_s, memory_bytes) as (
        reply,
        status,
    ):
        lines = reply.read(MAX_REPLY_BYTES).splitlines()
    is_verified = False
    notes: list[str] = []
    for line in lines:
        try:
            fields: dict[str, Any] = json.loads(line)
            wrong, reason, note = (str(fields.get(name, "")) for name in ("wrong", "reason", "note"))
        except (ValueError, AttributeError, RecursionError):
            break  # the child is compromised, or died while writing
        if wrong:
            raise ModelError(wrong[:MAX_PROBLEM_CHARS])
        if reason and not is_verified:
            return Verification(reason[:MAX_PROBLEM_CHARS])
        is_verified = True
        if note:
            notes.append(note[:MAX_PROBLEM_CHARS])
    if is_verified:
        return Verification(note="; ".join(notes))
    ended = f"it takes longer than {timeout_s:g} s" if status is None else f"it {describe_exit(status)}"
    return Verification(ended)


# The child's side


def _answer(request: dict[str, Any], reply: BinaryIO) -> None:
    shapes = {name: tuple(shape) for name, shape in request["shapes"].items()}
    try:
        file = read_model(os.fdopen(request["model"], "rb"), shapes)
        for agreement in verify_file(file, detect_device().target, request["target"]):
            write_line(reply, {"verified": agreement.inputs, "note": agreement.note})
    except NoReference as error:
        write_line(reply, {"reason": str(error)})
    except ModelError as error:
        write_line(reply, {"wrong": str(error)})
    except Exception as error:
        write_line(reply, {"reason": describe_error(error)})


if __name__ == "__main__":
    serve(_answer)
