"""The right outputs of a case: by ONNX Runtime, ONNX's reference evaluator, or NumPy."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from benchmarks.coverage.cases import Array, Case
from compiler.importing.onnx_runtime import load_session
from compiler.importing.values import numpy_dtype

# Wider types that replace a type without a kernel in ONNX Runtime. The first with a kernel is used.
WIDER = {"float": ("float32", "float64"), "int": ("int64", "int32", "float32"), "bool": ("uint8", "int32")}
# The opsets for ONNX Runtime, which has few kernels of the newest operators.
IR_VERSION = 10
OPSETS = (25, 23, 21, 19, 17)
# Attributes that choose the type of an output.
OUTPUT_TYPES = ("to", "dtype", "output_dtype", "output_datatype", "stash_type")


def expected_outputs(case: Case, dtype: str) -> tuple[Array, ...] | None:
    """Return the outputs of a case with values of type `dtype`; None if nothing can compute them.

    ONNX Runtime computes them in a wider type if it has no kernel for the type.
    """
    found = computed_by_runtime(case.model, case.inputs)
    if found is None:
        found = _computed_wider(case, dtype)
    if found is None:
        found = _evaluated(case)
    return _computed_by_numpy(case) if found is None else found


def _computed_wider(case: Case, dtype: str) -> tuple[Array, ...] | None:
    kind = "bool" if dtype == "bool" else "float" if dtype.startswith(("float", "bfloat")) else "int"
    number = int(onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype)))
    given = onnx.load_from_string(case.model).graph.output
    if not all(one.type.HasField("tensor_type") for one in given):
        return None
    for wider in WIDER[kind]:
        model = onnx.load_from_string(case.model)
        widened = int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(wider)))
        for value in (*model.graph.input, *model.graph.output):
            if value.type.tensor_type.elem_type == number:
                value.type.tensor_type.elem_type = widened
        for tensor in model.graph.initializer:
            if tensor.data_type == number:
                array = np.asarray(numpy_helper.to_array(tensor)).astype(wider)
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        for attribute in (one for node in model.graph.node for one in node.attribute):
            if attribute.name in OUTPUT_TYPES and attribute.i == number:
                attribute.i = widened
        inputs = {
            name: array.astype(wider) if str(array.dtype) == dtype else array
            for name, array in case.inputs.items()
        }
        found = computed_by_runtime(model.SerializeToString(), inputs)
        if found is not None:
            types = [onnx.helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type) for one in given]
            return tuple(each.astype(kind) for each, kind in zip(found, types, strict=True))
    return None


def computed_by_runtime(model: bytes, inputs: Mapping[str, Array]) -> tuple[Array, ...] | None:
    """Return ONNX Runtime's outputs, with an older opset if it has no kernel for the current one; None if it
    can't run the model."""
    proto = onnx.load_from_string(model)
    proto.ir_version = min(proto.ir_version, IR_VERSION)
    names = [output.name for output in proto.graph.output]
    for opset in (None, *OPSETS):
        for entry in proto.opset_import:
            entry.version = opset if opset is not None and not entry.domain else entry.version
        try:
            return _arrays(load_session(proto, names)(inputs))
        except Exception:  # ONNX Runtime's errors have no common class
            continue
    return None


def _evaluated(case: Case) -> tuple[Array, ...] | None:
    try:
        # The evaluator prints, and warns of overflows.
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            evaluator = ReferenceEvaluator(onnx.load_from_string(case.model))
            return _arrays(list(evaluator.run(None, dict(case.inputs))))
    except Exception:  # its kernels raise any exception
        return None


def _computed_by_numpy(case: Case) -> tuple[Array, ...] | None:
    """Return the outputs by the standard's formula; None if there is no formula of the operator here."""
    model = onnx.load_from_string(case.model)
    weights = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    (node, *others) = model.graph.node
    if others or node.op_type != "QLinearMatMul":
        return None
    a, a_scale, a_zero, b, b_scale, b_zero, scale, zero = (
        {**case.inputs, **weights}[name].astype(np.float32) for name in node.input
    )
    dtype = {**case.inputs, **weights}[node.input[-1]].dtype
    most = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
    product = ((a - a_zero) * a_scale) @ ((b - b_zero) * b_scale) / scale + zero
    return (np.clip(product, -most, most).astype(dtype),)


def _arrays(results: Sequence[Any]) -> tuple[Array, ...] | None:
    """Return results as arrays; None if one is a sequence or nothing."""
    if not all(isinstance(one, np.ndarray | np.generic) for one in results):
        return None
    return tuple(map(np.asarray, results))
