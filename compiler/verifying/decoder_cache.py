"""Check decoders that keep their cache in place.

An ONNX decoder is compared with its file, which returns a longer cache. An exported program of several tokens
is compared with itself: steps of fewer tokens, which the runtime pads, must compute the same outputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from compiler.importing.formats.exported_program import ExportedProgram
from compiler.importing.onnx_file import OnnxFile
from compiler.importing.spec import KEEP_AS_FUNCTION, ModelError, NoReference
from compiler.measuring.outputs import compare_outputs
from compiler.verifying.inputs import drawn, input_sets
from compiler.verifying.reference import Reference
from compiler.verifying.steps.exported_program import index_extents
from core.decoder_inputs import inputs_of_file

Array = NDArray[Any]


def check_cache(file: OnnxFile) -> None:
    """Compare outputs without earlier tokens, after one token, with a half-full cache and with a full cache.

    Raises ModelError if they differ; NoReference. A file that needs an earlier token is compared after one.
    """
    assert file.cache is not None
    own = Reference(file.original, file.output_names)
    grown = Reference(_with_weights(file), file.output_names)
    last = file.cache.capacity - file.cache.count
    drawn: Iterator[dict[str, Array]] = iter(input_sets(file))
    inputs = {**next(drawn), **file.weights}
    # A reference that fails is dropped, and an empty cache may make it fail: so zero comes last.
    for before in (*sorted({1, (last + 1) // 2, last}), 0):
        inputs[file.cache.position] = np.array([before])
        found = own.compute(inputs)
        try:
            wanted = grown.compute(inputs_of_file(file.cache, inputs))
        except NoReference:
            if before:
                raise
            return
        wrong = compare_outputs(list(wanted.values()), list(found.values()), file.computed_in)
        if wrong:
            raise ModelError(
                f"after {before} tokens, the decoder computes other outputs with its cache in place "
                f"({wrong}): {KEEP_AS_FUNCTION}"
            )


def check_shorter_steps(file: ExportedProgram, computed_in: str) -> None:
    """Compare one step of several tokens with two shorter steps. Raises ModelError if they differ, and
    NoReference.

    They differ if a token's outputs depend on later tokens, or if the program takes its first token for the
    cache's first.
    """
    if file.cache is None or file.cache.spec.count == 1:
        return
    cache, function = file.cache.spec, file.as_function()
    ((tokens, axis),) = cache.tokens.items()
    half = min(cache.count // 2, cache.capacity - cache.count)
    given = next(iter(drawn(function.inputs, index_extents(function))))
    given |= {name: np.zeros_like(given[name]) for name in cache.buffers}

    def step(before: int, taken: Array, buffers: Mapping[str, Array]) -> dict[str, Array]:
        padded = np.zeros_like(given[tokens])
        padded[(slice(None),) * axis + (slice(taken.shape[axis]),)] = taken
        positions = np.arange(before, before + cache.count).reshape(given[cache.position].shape)
        fed = {**given, **buffers, tokens: padded, cache.position: positions}
        return dict(zip(function.output_names, function.compute(fed), strict=True))

    whole, first = (step(0, given[tokens].take(range(end), axis), {}) for end in (cache.count, half))
    rest = given[tokens].take(range(half, cache.count), axis)
    second = step(half, rest, {name: first[output] for output, name in function.buffers.items()})
    for name, place in cache.outputs.items():
        ends = [first[name].take(range(half), place), second[name].take(range(cache.count - half), place)]
        wrong = compare_outputs([whole[name]], [np.concatenate(ends, place)], computed_in)
        if wrong:
            raise ModelError(
                f"a step of {cache.count} tokens computes another output '{name}' than two shorter steps "
                f"({wrong}): hide later tokens by their positions, or export it for one token"
            )


def _with_weights(file: OnnxFile) -> onnx.ModelProto:
    """Return the decoder's original file, with its weights."""
    assert file.source is not None
    proto = onnx.ModelProto()
    proto.CopyFrom(file.source)
    proto.graph.initializer.extend(file.original.graph.initializer)
    return proto
