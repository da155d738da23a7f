"""Compare a decoder that keeps its cache in place with its file, which returns a longer cache."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from compiler.importing.onnx_file import OnnxFile
from compiler.importing.spec import KEEP_AS_FUNCTION, ModelError, NoReference
from compiler.measuring.outputs import compare_outputs
from compiler.verifying.inputs import input_sets
from compiler.verifying.reference import Reference
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


def _with_weights(file: OnnxFile) -> onnx.ModelProto:
    """Return the decoder's original file, with its weights."""
    assert file.source is not None
    proto = onnx.ModelProto()
    proto.CopyFrom(file.source)
    proto.graph.initializer.extend(file.original.graph.initializer)
    return proto
