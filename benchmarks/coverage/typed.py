"""Every operator with every element type that ONNX allows, made from ONNX's node tests.

A case is a node test with another type for one type variable of the operator's schema. ONNX Runtime without
optimizations computes the expected values, in a wider type if it has no kernel for the type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from benchmarks.coverage.cases import Array, Case
from benchmarks.coverage.importers import Attempts
from benchmarks.coverage.tried import TYPES, TypedVerdict
from compiler.importing.values import numpy_dtype

# Wider types that replace a type without a kernel in ONNX Runtime. The first with a kernel is used.
WIDER = {"float": ("float32", "float64"), "int": ("int64", "int32", "float32"), "bool": ("uint8", "int32")}
# Tolerances relative to the largest value. float64 is compared with float32 if ONNX Runtime has no other
# kernel.
TOLERANCES = {"float16": 4e-3, "bfloat16": 3e-2, "float64": 1e-5, "float32": 1e-4}
# The opset for ONNX Runtime, which has few kernels of the newest operators.
IR_VERSION = 10
OPSETS = (23, 21, 19, 17)
CASES_EACH = 1
SMALL = 7


def typed_cases(cases: Iterable[Case]) -> Iterator[tuple[str, str, Case]]:
    """Yield the operator, the element type and the case, for some of the node tests of each operator."""
    counts: dict[str, int] = {}
    for case in cases:
        model = onnx.load_from_string(case.model)
        if case.left_out or len(model.graph.node) != 1 or counts.get(case.operator, 0) >= CASES_EACH:
            continue
        if _differs(case):
            continue
        counts[case.operator] = counts.get(case.operator, 0) + 1
        for variable, dtype in _variables(model):
            typed = _retyped(case, model, variable, dtype)
            if typed is not None:
                yield case.operator, dtype, replace(typed, name=f"{case.name} {variable}={dtype}")


def attempt(operator: str, dtype: str, case: Case, attempts: Attempts) -> TypedVerdict:
    """Compare the import of a case with ONNX Runtime."""
    expected = _expected(case, dtype)
    if expected is None:
        return TypedVerdict(case.name, operator, dtype, None)
    bound = TOLERANCES.get(dtype, 1e-4)
    sizes = [np.abs(each.astype(np.float64)) for each in expected]
    largest = max((float(size[np.isfinite(size)].max(initial=0)) for size in sizes), default=0.0)
    known = replace(
        case, outputs=expected, relative_tolerance=bound, absolute_tolerance=bound * max(largest, 1e-6)
    )
    return TypedVerdict(case.name, operator, dtype, attempts.attempt(known))


def _differs(case: Case) -> bool:
    """Return whether ONNX Runtime's outputs differ from the node test's, as for some positions of
    MaxUnpool."""
    found = _computed(case.model, case.inputs)
    if found is None:
        return False
    return any(
        one.shape != wanted.shape
        or not np.allclose(one.astype(np.float64), wanted.astype(np.float64), 1e-2, 1e-3, equal_nan=True)
        for one, wanted in zip(found, case.outputs, strict=False)
    )


def _schema(model: onnx.ModelProto) -> Any:
    (node,) = model.graph.node
    versions = {entry.domain: entry.version for entry in model.opset_import}
    return onnx.defs.get_schema(node.op_type, versions[node.domain], node.domain)


def _variables(model: onnx.ModelProto) -> Iterator[tuple[str, str]]:
    """Yield the type variables of a model's operator, each with its allowed types."""
    for constraint in _schema(model).type_constraints:
        allowed = {text.removeprefix("tensor(").removesuffix(")") for text in constraint.allowed_type_strs}
        names = {"float": "float32", "double": "float64"}
        for dtype in TYPES:
            if dtype in {names.get(text, text).replace("float8e", "float8_e") for text in allowed} or (
                dtype == "float4_e2m1fn" and "float4e2m1" in allowed
            ):
                yield constraint.type_param_str, dtype


def _retyped(case: Case, model: onnx.ModelProto, variable: str, dtype: str) -> Case | None:
    """Return the case with another type for a type variable; None if no input or output has that variable."""
    typed = onnx.ModelProto()
    typed.CopyFrom(model)
    (node,) = typed.graph.node
    schema = _schema(model)
    formal_inputs, formal_outputs = list(schema.inputs), list(schema.outputs)

    def of(formal: Sequence[Any], position: int) -> str:
        return str(formal[min(position, len(formal) - 1)].type_str)

    number = int(onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype)))
    chosen = {name for k, name in enumerate(node.input) if name and of(formal_inputs, k) == variable}
    results = {name for k, name in enumerate(node.output) if of(formal_outputs, k) == variable}
    if not chosen:
        told = [one for one in node.attribute if one.name in ("to", "dtype", "output_dtype")]
        if not results or not told:
            return None
        told[0].i = number
    inputs = {name: _as(array, dtype) if name in chosen else array for name, array in case.inputs.items()}
    for tensor in typed.graph.initializer:
        if tensor.name in chosen:
            tensor.CopyFrom(numpy_helper.from_array(_as(numpy_helper.to_array(tensor), dtype), tensor.name))
    for value in (*typed.graph.input, *typed.graph.output):
        if value.name in chosen or value.name in results:
            value.type.tensor_type.elem_type = number
    return replace(case, model=typed.SerializeToString(), inputs=inputs)


def _as(array: Array, dtype: str) -> Array:
    """Convert values to another type. If it can't represent them, use small whole numbers."""
    wanted = numpy_dtype(dtype)
    if "float" in dtype:
        return array.astype(np.float32).astype(wanted)
    if "float" in str(array.dtype):
        small = np.clip(np.nan_to_num(array.astype(np.float64)), -SMALL, SMALL)
        array = np.clip(np.rint(small * 3), -SMALL, SMALL)
    if dtype == "bool":
        return np.asarray(array > 0)
    wide = array.astype(np.int64)
    if dtype in ("int2", "uint2", "int4", "uint4"):
        bits = int(dtype[-1])
        low, high = (0, 2**bits - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    else:
        low, high = int(np.iinfo(wanted).min), int(np.iinfo(wanted).max)
    wide = np.abs(wide) if dtype.startswith("u") else wide
    return np.clip(wide, low, min(high, 2**63 - 1)).astype(wanted)


def _expected(case: Case, dtype: str) -> tuple[Array, ...] | None:
    """Return ONNX Runtime's outputs; None if it can't run the case."""
    found = _computed(case.model, case.inputs)
    kind = "bool" if dtype == "bool" else "float" if dtype.startswith(("float", "bfloat")) else "int"
    for wider in WIDER[kind] if found is None else ():
        model = onnx.load_from_string(case.model)
        number = int(onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(dtype)))
        widened = int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(wider)))
        for value in (*model.graph.input, *model.graph.output):
            if value.type.tensor_type.elem_type == number:
                value.type.tensor_type.elem_type = widened
        for tensor in model.graph.initializer:
            if tensor.data_type == number:
                array = numpy_helper.to_array(tensor).astype(wider)
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
        inputs = {
            name: array.astype(wider) if str(array.dtype) == dtype else array
            for name, array in case.inputs.items()
        }
        wide = _computed(model.SerializeToString(), inputs)
        if wide is not None:
            given = onnx.load_from_string(case.model).graph.output
            types = [
                onnx.helper.tensor_dtype_to_np_dtype(one.type.tensor_type.elem_type)
                for one in given
                if one.type.HasField("tensor_type")
            ]
            return tuple(each.astype(kind) for each, kind in zip(wide, types, strict=True))
    return found


def _computed(model: bytes, inputs: Mapping[str, Array]) -> tuple[Array, ...] | None:
    """Run ONNX Runtime, with an older opset if it has no kernel for the current one."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    proto = onnx.load_from_string(model)
    proto.ir_version = min(proto.ir_version, IR_VERSION)
    for opset in (None, *OPSETS):
        for entry in proto.opset_import:
            entry.version = opset if opset is not None and not entry.domain else entry.version
        try:
            session = onnxruntime.InferenceSession(
                proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
            )
            results = session.run(None, dict(inputs))
        except Exception:  # ONNX Runtime's errors have no common class
            continue
        return tuple(results) if all(isinstance(one, np.ndarray) for one in results) else None
    return None
