"""Every operator with every element type that ONNX allows.

A cell of the table is an operator with another type for one type variable of its schema. Its models are
ONNX's node tests with that type, and models of our own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.coverage.cases import Array, Case
from benchmarks.coverage.expected import OUTPUT_TYPES, computed_by_runtime, expected_outputs
from benchmarks.coverage.importers import Attempts
from benchmarks.coverage.own_cases import own_cases
from benchmarks.coverage.tried import TYPES, Outcome, TypedVerdict, Verdict
from compiler.importing.values import numpy_dtype

# Tolerances relative to the largest value. float64 is compared with float32 if ONNX Runtime has no other
# kernel.
TOLERANCES = {"float16": 4e-3, "bfloat16": 3e-2, "float64": 1e-5, "float32": 1e-4}
SMALL = 7


@dataclass(frozen=True)
class Cell:
    """An operator with an element type for one of its type variables, and models of it."""

    operator: str
    dtype: str
    cases: tuple[Case, ...]


def typed_cells(cases: Iterable[Case], operators: Sequence[str] = ()) -> Iterator[Cell]:
    """Yield the cells of the operators of these node tests, and of our own cases. With `operators`, yield
    only theirs."""
    found: defaultdict[str, list[Case]] = defaultdict(list)
    for case in cases:
        is_single = len(onnx.load_from_string(case.model).graph.node) == 1
        if not case.left_out and is_single and not _differs(case):
            found[case.operator].append(case)
    own = own_cases()
    for operator in sorted({*found, *own}):
        if operators and operator not in operators:
            continue
        typed: defaultdict[tuple[str, str], list[Case]] = defaultdict(list)
        for case in found[operator]:
            model = onnx.load_from_string(case.model)
            for variable, dtype in _variables(model):
                retyped = _retyped(case, model, variable, dtype)
                if retyped is not None and _is_valid(retyped):
                    named = replace(retyped, name=f"{case.name} {variable}={dtype}")
                    typed[variable, dtype].append(named)
        for each in own.get(operator, ()):
            for dtype in TYPES:
                made = each.make(dtype)
                if made is not None and _is_valid(made):
                    typed[each.variable, dtype].append(made)
        for (_, dtype), candidates in typed.items():
            yield Cell(operator, dtype, tuple(candidates))


def attempt(cell: Cell, attempts: Attempts) -> TypedVerdict:
    """Compare the import of a cell's cases with their right outputs until one is right or wrong.

    The answer is a refusal if all cases are refused, and None if no right outputs are known.
    """
    answer, name = None, cell.cases[0].name
    for case in cell.cases:
        found = _attempt_case(case, cell.dtype, attempts)
        if found is not None and found.outcome is not Outcome.REFUSED:
            return TypedVerdict(case.name, cell.operator, cell.dtype, found)
        if answer is None and found is not None:
            answer, name = found, case.name
    return TypedVerdict(name, cell.operator, cell.dtype, answer)


def _attempt_case(case: Case, dtype: str, attempts: Attempts) -> Verdict | None:
    expected = expected_outputs(case, dtype)
    if expected is None:
        found = attempts.attempt(replace(case, outputs=()))
        return found if found.outcome in (Outcome.REFUSED, Outcome.CRASHED) else None
    bound = TOLERANCES.get(dtype, 1e-4)
    sizes = [np.abs(each.astype(np.float64)) for each in expected]
    largest = max((float(size[np.isfinite(size)].max(initial=0)) for size in sizes), default=0.0)
    known = replace(
        case, outputs=expected, relative_tolerance=bound, absolute_tolerance=bound * max(largest, 1e-6)
    )
    return attempts.attempt(known)


def _is_valid(case: Case) -> bool:
    """Return whether ONNX accepts the model. It rejects some combinations of types, such as a BitCast to
    another width."""
    try:
        onnx.checker.check_model(case.model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def _differs(case: Case) -> bool:
    """Return whether ONNX Runtime's outputs differ from the node test's, as for some positions of
    MaxUnpool."""
    found = computed_by_runtime(case.model, case.inputs)
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
    results = {name for k, name in enumerate(node.output) if name and of(formal_outputs, k) == variable}
    if not chosen and not (results and _set_output_type(node, schema, number)):
        return None
    inputs = {name: _as(array, dtype) if name in chosen else array for name, array in case.inputs.items()}
    if node.op_type in ("Cast", "CastLike") and "float" not in dtype:
        # A cast of NaN, of an infinity or of a number out of range is undefined.
        inputs = {name: _in_range(array, dtype) for name, array in inputs.items()}
    if "float" in dtype:
        # The zero points of floats are 0.
        zeros = {name for k, name in enumerate(node.input) if "zero_point" in _formal_name(formal_inputs, k)}
        inputs |= {name: np.zeros_like(inputs[name]) for name in chosen & zeros & set(inputs)}
    for tensor in typed.graph.initializer:
        if tensor.name in chosen:
            tensor.CopyFrom(numpy_helper.from_array(_as(numpy_helper.to_array(tensor), dtype), tensor.name))
    for value in (*typed.graph.input, *typed.graph.output):
        if value.name in chosen or value.name in results:
            value.type.tensor_type.elem_type = number
    return replace(case, model=typed.SerializeToString(), inputs=inputs)


def _set_output_type(node: onnx.NodeProto, schema: Any, number: int) -> bool:
    """Set the attribute that chooses an output's type; return whether there is one."""
    if node.op_type == "ConstantOfShape":
        (value,) = node.attribute
        dtype = str(onnx.helper.tensor_dtype_to_np_dtype(number))
        value.t.CopyFrom(numpy_helper.from_array(_as(numpy_helper.to_array(value.t), dtype)))
        return True
    name = next((name for name in OUTPUT_TYPES if name in schema.attributes), None)
    if name is None:
        return False
    kept = [one for one in node.attribute if one.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, onnx.helper.make_attribute(name, number)])
    return True


def _formal_name(formal: Sequence[Any], position: int) -> str:
    return str(formal[min(position, len(formal) - 1)].name)


def _in_range(array: Array, dtype: str) -> Array:
    """Return numbers that an integer type has after they are cut off."""
    if array.dtype.kind in "USO" or "float" not in str(array.dtype):
        return array
    least = 0 if dtype.startswith("u") else -1
    return np.clip(np.nan_to_num(array.astype(np.float32)), least, 1).astype(array.dtype)


def _as(array: Array, dtype: str) -> Array:
    """Convert values to another type. If it can't represent them, use small whole numbers."""
    wanted = numpy_dtype(dtype)
    array = np.asarray(array)
    if "float" in dtype:
        with np.errstate(over="ignore", invalid="ignore"):
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
