"""Compare the outputs of an inference with the outputs of ONNX Runtime for the original model."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from compiler.importing.formats.onnx_model import OnnxModel
from compiler.importing.formats.reading import read_model
from compiler.importing.spec import NoReference, Shape, TensorSpec
from compiler.packaging.arrays import inputs_of, read_arrays
from compiler.verifying.reference import Reference
from core.inference import Comparison, OutputDifference
from core.quantization import decibels

Array = NDArray[Any]


def compare(
    model: IO[bytes],
    shapes: Mapping[str, Shape],
    inputs: IO[bytes],
    input_specs: Sequence[TensorSpec],
    outputs: IO[bytes],
    output_specs: Sequence[TensorSpec],
) -> Comparison:
    """Return how the outputs in an .npz file differ from ONNX Runtime's. Raises ModelError if a file can't be
    read.
    """
    found = read_arrays(outputs, [spec.name for spec in output_specs], "the file of outputs", "output")
    file = read_model(model, shapes)
    if not isinstance(file, OnnxModel):
        return Comparison(note="only the outputs of ONNX models can be compared")
    own = [spec.name for spec in file.inputs]
    if own != [spec.name for spec in input_specs]:
        return Comparison(note="the artifact doesn't have the inputs of the original model")
    arrays = dict(zip(own, inputs_of(inputs, input_specs, "the file of inputs"), strict=True))
    try:
        wanted = Reference(file.file.proto, file.file.output_names).compute({**file.file.weights, **arrays})
    except NoReference as error:
        return Comparison(note=str(error))
    return Comparison(
        tuple(
            difference(spec, wanted[name], found[spec.name])
            for spec, name in zip(output_specs, file.file.output_names, strict=True)
        )
    )


def difference(spec: TensorSpec, wanted: Array, found: Array) -> OutputDifference:
    """Return how an output differs from the reference's. If an output is padded because the data selects its
    rows, only the selected rows are compared.
    """
    if spec.padded_axis is not None and wanted.ndim == found.ndim:
        found = found.take(range(wanted.shape[spec.padded_axis]), spec.padded_axis, mode="clip")
    if wanted.shape != found.shape:
        return OutputDifference(spec.name, wanted.size, wanted.size, None, decibels(1.0, math.inf))
    differs = ~((wanted == found) | ((wanted != wanted) & (found != found)))
    if not differs.any():
        return OutputDifference(spec.name, wanted.size, 0, 0.0, None)
    a, b = wanted.astype(np.float64), found.astype(np.float64)
    numbers = np.isfinite(a) & np.isfinite(b)
    with np.errstate(over="ignore", invalid="ignore"):
        error = np.where(numbers, _distances(wanted, found), 0.0)
        noise = float(np.sum(error * error))
        signal = float(np.sum(np.where(numbers, a * a, 0.0)))
    largest = float(error.max())
    if (differs & ~numbers).any() or not math.isfinite(largest):
        return OutputDifference(spec.name, wanted.size, int(differs.sum()), None, decibels(1.0, math.inf))
    # The square of a tiny error is zero, but the output isn't equal.
    ratio = decibels(signal, max(noise, sys.float_info.min))
    return OutputDifference(spec.name, wanted.size, int(differs.sum()), largest, ratio)


def _distances(wanted: Array, found: Array) -> NDArray[np.float64]:
    """Return the absolute differences. Integers are subtracted as integers: doubles can't hold those of 64
    bits.
    """
    if wanted.dtype.kind in "iu" and found.dtype.kind in "iu":
        large, small = np.maximum(wanted, found), np.minimum(wanted, found)
        # Modulo 2^64, which no difference reaches.
        return (large.astype(np.uint64) - small.astype(np.uint64)).astype(np.float64)
    return np.abs(wanted.astype(np.float64) - found.astype(np.float64))
