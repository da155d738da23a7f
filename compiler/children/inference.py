"""Compare untrusted outputs with a reference, in a child process (`compiler.children.child` says why).

The child replies with a line of JSON: the comparison, or the problem.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
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
from compiler.importing.spec import ModelError, Shape, TensorSpec
from compiler.packaging.arrays import inputs_of
from compiler.verifying.differences import compare
from core.inference import Comparison

COMPARE_S = 300.0
MAX_REPLY_BYTES = 4 << 20
MAX_PROBLEM_CHARS = 8192


def check_inputs(inputs: IO[bytes], specs: Sequence[TensorSpec]) -> None:
    """Raise ModelError unless an .npz file has an array for each input, of its type and shape."""
    _ask({"inputs": inputs}, {"input_specs": specs}, {})


def compare_outputs(
    model: IO[bytes],
    shapes: Mapping[str, Shape],
    inputs: IO[bytes],
    input_specs: Sequence[TensorSpec],
    outputs: IO[bytes],
    output_specs: Sequence[TensorSpec],
) -> Comparison:
    """Compare the outputs in an .npz file with ONNX Runtime's outputs for the inputs.
    Raises ModelError.
    """
    files = {"model": model, "inputs": inputs, "outputs": outputs}
    return _ask(files, {"input_specs": input_specs, "output_specs": output_specs}, shapes)


def _ask(
    files: Mapping[str, IO[bytes]], specs: Mapping[str, Sequence[TensorSpec]], shapes: Mapping[str, Shape]
) -> Comparison:
    size = sum(map(size_of, files.values()))
    memory_bytes = BASE_MEMORY_BYTES + MEMORY_PER_MODEL_BYTE * size
    request: dict[str, Any] = {name: file.fileno() for name, file in files.items()}
    request |= {name: [asdict(spec) for spec in listed] for name, listed in specs.items()}
    request |= {"shapes": dict(shapes), "memory_bytes": memory_bytes}
    message, opened = json.dumps(request).encode(), tuple(files.values())
    with run_child("compiler.children.inference", message, COMPARE_S, memory_bytes, opened) as (
        reply,
        status,
    ):
        text = reply.read(MAX_REPLY_BYTES)
    try:
        fields = json.loads(text)
        problem = str(fields.pop("problem", ""))[:MAX_PROBLEM_CHARS]
        if not problem:
            return msgspec.convert(fields, Comparison)
    except (ValueError, AttributeError, RecursionError, msgspec.ValidationError) as error:
        end = f"it takes longer than {COMPARE_S:g} s" if status is None else f"it {describe_exit(status)}"
        raise ModelError(f"reading the inputs and outputs failed: {end}") from error
    raise ModelError(problem)


# The child's side


def _answer(request: dict[str, Any], reply: BinaryIO) -> None:
    shapes = {name: tuple(shape) for name, shape in request["shapes"].items()}
    specs = {
        name: [TensorSpec(**spec | {"shape": tuple(spec["shape"])}) for spec in request.get(name, ())]
        for name in ("input_specs", "output_specs")
    }
    try:
        with ExitStack() as opened:
            files = {
                name: opened.enter_context(os.fdopen(request[name], "rb"))
                for name in ("model", "inputs", "outputs")
                if name in request
            }
            if "outputs" in files:
                found = compare(
                    files["model"],
                    shapes,
                    files["inputs"],
                    specs["input_specs"],
                    files["outputs"],
                    specs["output_specs"],
                )
            else:
                inputs_of(files["inputs"], specs["input_specs"], "the file of inputs")
                found = Comparison()
        write_line(reply, asdict(found))
    except ModelError as error:
        write_line(reply, {"problem": str(error)})
    except Exception as error:
        write_line(reply, {"problem": f"the inputs and outputs can't be read: {describe_error(error)}"})


if __name__ == "__main__":
    serve(_answer)
