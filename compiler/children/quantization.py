"""Quantize an untrusted model in a child process (`compiler.children.child` says why).

The child replies with a line of JSON, the accuracy of the quantized model, and then with the model.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from typing import IO, Any, BinaryIO

import msgspec

from compiler.children.child import (
    BASE_MEMORY_BYTES,
    MEMORY_PER_MODEL_BYTE,
    describe_error,
    describe_exit,
    run_child,
    serve,
    size_of,
    write_line,
)
from compiler.importing.formats.reading import read_model
from compiler.importing.spec import ModelError, Shape
from compiler.quantizing.quantize import quantize
from core.job import Quantize
from core.model_format import ModelFormat, UnknownFormat, recognise
from core.quantization import Quantization

QUANTIZE_S = 1800.0
MAX_PROBLEM_CHARS = 8192
MAX_LINE_BYTES = 4 << 20
# Quantizing shrinks weights, but adds scales and zero points: the file may grow by this much.
MORE_BYTES = 64 << 20


def quantize_model(
    model: IO[bytes],
    shapes: Mapping[str, Shape],
    kind: Quantize,
    data: IO[bytes] | None,
    into: IO[bytes],
    *,
    narrow: bool = False,
) -> Quantization:
    """Write an ONNX model's quantized form to the empty file `into`; return its accuracy.

    `data` is an .npz file of calibration data. With `narrow`, weights have 7 bits if possible, as in
    `compiler.quantizing.quantize`. Raises ModelError.
    """
    size = size_of(model)
    # Several copies of the float model's values for a sample are in memory.
    memory_bytes = BASE_MEMORY_BYTES + MEMORY_PER_MODEL_BYTE * size + 4 * (size_of(data) if data else 0)
    request = {
        "model": model.fileno(),
        "data": None if data is None else data.fileno(),
        "shapes": dict(shapes),
        "kind": kind,
        "narrow": narrow,
        "memory_bytes": memory_bytes,
    }
    files = (model,) if data is None else (model, data)
    message = json.dumps(request).encode()
    child = run_child("compiler.children.quantization", message, QUANTIZE_S, memory_bytes, files)
    with child as (reply, status):
        ended = f"takes longer than {QUANTIZE_S:g} s" if status is None else describe_exit(status)
        try:
            fields = json.loads(reply.readline(MAX_LINE_BYTES))
            problem = fields.get("problem")
        except (ValueError, AttributeError, RecursionError):
            raise ModelError(f"quantizing the model {ended}") from None
        if problem:
            raise ModelError(str(problem)[:MAX_PROBLEM_CHARS])
        if status != 0 or size_of(reply) > size + MORE_BYTES + MAX_LINE_BYTES:
            raise ModelError(f"quantizing the model {ended}")
        shutil.copyfileobj(reply, into)
        try:
            if recognise(into) is not ModelFormat.ONNX:
                raise UnknownFormat("it isn't an ONNX model")
            return msgspec.convert(fields, Quantization)
        except (UnknownFormat, msgspec.ValidationError) as error:
            raise ModelError(f"the quantized model is invalid: {error}") from error


# The child's side


def _answer(request: dict[str, Any], reply: BinaryIO) -> None:
    shapes = {name: tuple(shape) for name, shape in request["shapes"].items()}
    try:
        with ExitStack() as opened:
            model = opened.enter_context(os.fdopen(request["model"], "rb"))
            data = None
            if request["data"] is not None:
                data = opened.enter_context(os.fdopen(request["data"], "rb"))
            proto, report = quantize(
                read_model(model, shapes), Quantize(request["kind"]), data, narrow=request["narrow"]
            )
        quantized = proto.SerializeToString()
    except ModelError as error:
        write_line(reply, {"problem": str(error)})
    except Exception as error:
        write_line(reply, {"problem": f"the model can't be quantized: {describe_error(error)}"})
    else:
        write_line(reply, asdict(report))
        reply.write(quantized)


if __name__ == "__main__":
    serve(_answer)
