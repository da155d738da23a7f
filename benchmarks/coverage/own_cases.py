"""Models of operators for which no node test of ONNX can be given another element type."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.coverage.cases import Case
from compiler.importing.values import numpy_dtype

OPSET = 26
IR_VERSION = 13
# Names of element types in ONNX's textual syntax, where they differ from ours.
_IN_TEXT = {
    "float32": "float",
    "float64": "double",
    "float4_e2m1fn": "float4e2m1",
    **{f"float8_{kind}": f"float8{kind}" for kind in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")},
}


@dataclass(frozen=True)
class OwnCase:
    """A graph in ONNX's textual syntax. `T[` stands for the element type, `U[` for the type in `others`, and
    `@T` and `@U` for their numbers.

    `variable` is the schema's type variable. With `others`, only its keys are tried.
    """

    operator: str
    variable: str
    graph: str
    others: Mapping[str, str] = field(default_factory=dict)

    def make(self, dtype: str) -> Case | None:
        """Return the case; None if the operator doesn't have this type."""
        if (self.others and dtype not in self.others) or not self._is_allowed(dtype):
            return None
        text = self.graph
        for letter, name in (("T", dtype), ("U", self.others.get(dtype, dtype))):
            number = int(onnx.helper.np_dtype_to_tensor_dtype(numpy_dtype(name)))
            text = text.replace(f"{letter}[", f"{_IN_TEXT.get(name, name)}[").replace(
                f"@{letter}", str(number)
            )
        model = onnx.parser.parse_model(f'<ir_version: {IR_VERSION}, opset_import: ["": {OPSET}]> {text}')
        for node in model.graph.node:
            if node.op_type == "Constant":
                value = numpy_helper.from_array(np.array([0, 1, 1]).astype(numpy_dtype(dtype)))
                node.attribute.append(onnx.helper.make_attribute("value", value))
        inputs = {
            value.name: np.resize(np.arange(4), _shape(value)).astype(
                onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            )
            for value in model.graph.input
        }
        name = f"own_{self.operator.lower()} {self.variable}={dtype}"
        return Case(name, self.operator, "", model.SerializeToString(), inputs, (), 0.0, 0.0)

    def _is_allowed(self, dtype: str) -> bool:
        schema = onnx.defs.get_schema(self.operator, OPSET)
        (allowed,) = (one for one in schema.type_constraints if one.type_param_str == self.variable)
        return any(f"tensor({_IN_TEXT.get(dtype, dtype)})" in text for text in allowed.allowed_type_strs)


def _shape(value: onnx.ValueInfoProto) -> list[int]:
    return [extent.dim_value for extent in value.type.tensor_type.shape.dim]


def own_cases() -> Mapping[str, list[OwnCase]]:
    """Return the cases by operator."""
    found: defaultdict[str, list[OwnCase]] = defaultdict(list)
    for operator, variable, graph in _GRAPHS:
        found[operator].append(OwnCase(operator, variable, f"g {graph}"))
    bits = "g (T[4] x) => (U[4] y) { y = BitCast<to = @U>(x) }"
    found["BitCast"].append(OwnCase("BitCast", "T1", bits, _SAME_WIDTH))
    return found


_SAME_WIDTH = {
    "bool": "uint8",
    "int8": "uint8",
    "uint8": "int8",
    "float8_e4m3fn": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
    "int16": "uint16",
    "uint16": "int16",
    "float16": "int16",
    "bfloat16": "int16",
    "int32": "uint32",
    "uint32": "int32",
    "float32": "int32",
    "int64": "uint64",
    "uint64": "int64",
    "float64": "int64",
    "int4": "uint4",
    "uint4": "int4",
    "float4_e2m1fn": "uint4",
    "int2": "uint2",
    "uint2": "int2",
}
_PAIR = "(T[3] x, T[3] w) => (T[3] y) <int64 k = {1}, int64 n = {0}>"
# The operator, the type variable, and the graph.
_GRAPHS = (
    ("Constant", "T", "(T[3] x) => (T[3] y, T[3] z) { y = Constant() z = Identity(x) }"),
    ("GlobalLpPool", "T", "(T[1,2,3,3] x) => (T[1,2,1,1] y) { y = GlobalLpPool<p = 3>(x) }"),
    (
        "MaxRoiPool",
        "T",
        "(T[1,1,4,4] x, T[1,5] r) => (T[1,1,2,2] y) { y = MaxRoiPool<pooled_shape = [2, 2]>(x, r) }",
    ),
    (
        "If",
        "V",
        """(bool c, T[3] x, T[3] w) => (T[3] y) {
            y = If<then_branch = t () => (T[3] u) { u = Identity(x) },
                   else_branch = e () => (T[3] v) { v = Identity(w) }>(c)
        }""",
    ),
    (
        "Loop",
        "V",
        """(T[3] x) => (T[3] y, T[2,3] z) <int64 n = {2}, bool go = {1}> {
            y, z = Loop<body = b (int64 i, bool more, T[3] a) => (bool again, T[3] c, T[3] s) {
                again = Identity(more) c = Identity(a) s = Identity(a)
            }>(n, go, x)
        }""",
    ),
    (
        "Scan",
        "V",
        """(T[3] x, T[2,3] w) => (T[3] y, T[2,3] z) {
            y, z = Scan<num_scan_inputs = 1, body = b (T[3] a, T[3] e) => (T[3] c, T[3] s) {
                c = Identity(e) s = Identity(a)
            }>(x, w)
        }""",
    ),
    ("SequenceConstruct", "T", _PAIR + "{ s = SequenceConstruct(x, w) y = SequenceAt(s, k) }"),
    ("SequenceAt", "T", _PAIR + "{ s = SequenceConstruct(x, w) y = SequenceAt(s, n) }"),
    (
        "SequenceInsert",
        "T",
        _PAIR + "{ s = SequenceConstruct(x) u = SequenceInsert(s, w) y = SequenceAt(u, k) }",
    ),
    (
        "SequenceErase",
        "S",
        _PAIR + "{ s = SequenceConstruct(w, x) u = SequenceErase(s, n) y = SequenceAt(u, n) }",
    ),
    ("SequenceLength", "S", "(T[3] x) => (int64 y) { s = SequenceConstruct(x, x) y = SequenceLength(s) }"),
    (
        "SequenceEmpty",
        "S",
        _PAIR + "{ s = SequenceEmpty<dtype = @T>() u = SequenceInsert(s, w) y = SequenceAt(u, n) }",
    ),
    (
        "SequenceMap",
        "S",
        _PAIR
        + """{
            s = SequenceConstruct(x, w)
            u = SequenceMap<body = b (T[3] a) => (T[3] c) { c = Identity(a) }>(s)
            y = SequenceAt(u, k)
        }""",
    ),
    (
        "ConcatFromSequence",
        "T",
        "(T[3] x, T[3] w) => (T[6] y) { s = SequenceConstruct(x, w) y = ConcatFromSequence<axis = 0>(s) }",
    ),
    (
        "SplitToSequence",
        "T",
        "(T[3] x) => (T[1] y) <int64 k = {1}> { s = SplitToSequence<axis = 0>(x, k) y = SequenceAt(s, k) }",
    ),
    ("Optional", "V", "(T[3] x) => (T[3] y) { o = Optional(x) y = OptionalGetElement(o) }"),
    ("OptionalGetElement", "V", "(T[3] x) => (T[3] y) { o = Optional(x) y = OptionalGetElement(o) }"),
    ("OptionalHasElement", "O", "(T[3] x) => (bool y) { o = Optional(x) y = OptionalHasElement(o) }"),
    (
        "RandomNormal",
        "T",
        "(T[3] x) => (T[3] y) { r = RandomNormal<dtype = @T, shape = [3]>() y = Add(x, r) }",
    ),
    (
        "RandomUniform",
        "T",
        "(T[3] x) => (T[3] y) { r = RandomUniform<dtype = @T, shape = [3]>() y = Add(x, r) }",
    ),
    ("RandomNormalLike", "T2", "(float[3] x) => (T[3] y) { y = RandomNormalLike<dtype = @T>(x) }"),
    ("RandomUniformLike", "T2", "(float[3] x) => (T[3] y) { y = RandomUniformLike<dtype = @T>(x) }"),
    ("Bernoulli", "T2", "(float[3] x) => (T[3] y) { y = Bernoulli<dtype = @T>(x) }"),
    ("Multinomial", "T2", "(float[1,3] x) => (T[1,4] y) { y = Multinomial<dtype = @T, sample_size = 4>(x) }"),
)
