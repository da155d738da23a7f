"""What TVM objects from outside may consist of: the classes, operators and annotations that only compute.

A module can do more: call any function of a process, link C or LLVM code, or be a schedule already. Each list
here is what one kind of text needs, and everything else is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from compiler.object_graph import LOOPS, Named, ObjectGraph, Part
from core.trace import ANNOTATIONS, STORAGE_SCOPES, THREAD_AXES

# The attribute of a workload that lists its parameters of narrow integers (`search.dag.NARROW`).
NARROW_BUFFERS = "narrow_buffers"


@dataclass(frozen=True)
class Vocabulary:
    """The names that may occur, and patterns of such names by part."""

    names: frozenset[Named]
    families: Mapping[Part, re.Pattern[str]] = field(default_factory=dict)

    def foreign(self, graph: ObjectGraph) -> list[Named]:
        """Return what a graph has beyond the vocabulary. Raises GraphRefused."""
        return sorted(one for one in graph.named() - self.names if not self._is_in_family(*one))

    def extended(self, names: Iterable[Named]) -> Vocabulary:
        return Vocabulary(self.names | frozenset(names), self.families)

    def _is_in_family(self, part: Part, name: str) -> bool:
        family = self.families.get(part)
        return family is not None and family.fullmatch(name) is not None


def _named(part: Part, names: Iterable[str]) -> frozenset[Named]:
    return frozenset((part, name) for name in names)


_VALUES = (
    *("None", "bool", "int", "float", "DataType", "ffi.Array", "ffi.Map", "ffi.String", "ffi.Shape"),
    *("ir.Call", "ir.DictAttrs", "ir.FloatImm", "ir.GlobalVar", "ir.IRModule", "ir.IntImm", "ir.Op"),
    *("ir.PrimType", "ir.Range", "ir.SourceMap", "ir.TensorLoad", "ir.TensorRegion", "ir.TupleType"),
    *("ir.Type", "ir.Var"),
)
_TIR_KINDS = (
    *("s_tir.SBlock", "s_tir.SBlockRealize", "s_tir.MatchBufferRegion", "te.CommReducer", "te.Reduce"),
    *("tirx.BufferRegionType", "tirx.BufferStore", "tirx.BufferType", "tirx.Bind", "tirx.Evaluate"),
    *("tirx.For", "tirx.IfThenElse", "tirx.IterVar", "tirx.PrimFunc", "tirx.SeqStmt"),
    # A function's type, which says the types of its tensors in relax's words.
    *("relax.FuncType", "relax.ShapeType", "relax.TensorType", "relax.expr.ShapeExpr"),
)
_RELAX_KINDS = (
    *("ffi.Tensor", "ir.GenericConst", "ir.Tuple", "ir.TupleGetItem"),
    *("relax.expr.BindingBlock", "relax.expr.DataflowBlock", "relax.expr.DataflowVar"),
    *("relax.expr.Function", "relax.expr.SeqExpr", "relax.expr.VarBinding", "relax.expr.MatchCast"),
)
_TIR_OPERATORS = (
    *("prim.ceil", "prim.clz", "prim.if_then_else", "prim.likely", "prim.log2"),
    *(
        f"tirx.{name}"
        for name in (
            *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "ceil", "copysign", "cos", "cosh"),
            *("erf", "exp", "exp10", "exp2", "fabs", "floor", "fma", "fmod", "hypot", "if_then_else"),
            *("isfinite", "isinf", "isnan", "ldexp", "likely", "log", "log10", "log1p", "log2"),
            *("nearbyint", "nextafter", "popcount", "pow", "round", "rsqrt", "shift_left", "shift_right"),
            *("sigmoid", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "bitwise_and", "bitwise_or"),
            *("bitwise_xor", "bitwise_not", "clz", "max_value", "min_value", "reinterpret"),
            "q_multiply_shift",
        )
    ),
)
_ATTRIBUTES = (
    *("global_symbol", "tirx.noalias", "s_tir", "num_input", "op_pattern", "layout_free_buffers"),
    NARROW_BUFFERS,
    *("tirx.is_entry_func", "relax.force_pure", "T.noalias"),
)
# What TVM's library of operators notes for its own searches.
_ANNOTATIONS = (
    *("layout_free_placeholders", "schedule_rule", "const_args", "axis", "const_matrix"),
    *("auto_scheduler_simplify_const_tensor_indices", "meta_schedule.write_cache_level"),
)
_UNSCHEDULED = _named(Part.SCOPE, ("", "global")) | _named(Part.THREAD, ("",))
_ARITHMETIC = r"prim\.\w+"
# Relax's operators except those that call, print, or manage memory and devices.
_RELAX_OPERATORS = (
    r"relax\.((nn|image|vision)\.\w+"
    r"|call_tir|(?!call_|invoke_|print$|assert_op$|hint_on_|to_vdevice$|shape_to_|tensor_to_shape$)\w+)"
)

# A model as relax functions and the TIR functions that they call.
MODULE = Vocabulary(
    _named(Part.KIND, (*_VALUES, *_TIR_KINDS, *_RELAX_KINDS))
    | _named(Part.OPERATOR, _TIR_OPERATORS)
    | _named(Part.ATTRIBUTE, _ATTRIBUTES)
    | _named(Part.ANNOTATION, _ANNOTATIONS)
    | _UNSCHEDULED,
    {
        Part.KIND: re.compile(rf"{_ARITHMETIC}|relax\.attrs\.(?!Call|Hint|ToVDevice)\w+"),
        Part.OPERATOR: re.compile(_RELAX_OPERATORS),
    },
)
# A subgraph as one TIR function. TVM's library of operators writes some of them, such as NMS, with loops and
# local buffers of its own.
WORKLOAD = Vocabulary(
    _named(Part.KIND, (*_VALUES, *_TIR_KINDS, "ir.Span", "ir.SourceName", "ir.StringImm", "ir.StringType"))
    | _named(Part.KIND, ("tirx.AllocBuffer", "tirx.AttrStmt", "tirx.While"))
    | _named(Part.KIND, ("tirx.TileLayout", "tirx.Axis", "tirx.Iter"))
    | _named(Part.LOOP, ("parallel",))
    | _named(Part.OPERATOR, _TIR_OPERATORS)
    | _named(Part.TEXT, ("seq",))
    | _named(Part.ATTRIBUTE, _ATTRIBUTES)
    | _named(Part.ANNOTATION, (*_ANNOTATIONS, "pragma_scope"))
    | _named(Part.SCOPE, ("local",))
    | _UNSCHEDULED,
    {Part.KIND: re.compile(_ARITHMETIC)},
)
# What schedules add to a workload: other kinds of loops, placed buffers, guards of tiles that don't divide.
_SCHEDULING = Vocabulary(
    _named(Part.KIND, (*_VALUES, *_TIR_KINDS, "tirx.AllocBuffer"))
    | _named(Part.LOOP, LOOPS)
    | _named(Part.OPERATOR, ("prim.if_then_else", "prim.likely", "tirx.if_then_else", "tirx.likely"))
    | _named(Part.ATTRIBUTE, ("global_symbol", "tirx.noalias", "s_tir"))
    # TVM marks copies that ReadAt and WriteAt make.
    | _named(Part.ANNOTATION, (*ANNOTATIONS, "auto_copy"))
    | _named(Part.SCOPE, STORAGE_SCOPES)
    | _UNSCHEDULED,
    {Part.KIND: re.compile(_ARITHMETIC), Part.THREAD: THREAD_AXES},
)


def describe(foreign: Iterable[Named]) -> str:
    """Return what `Vocabulary.foreign` found, as a clause for people."""
    named = [f"the {part.value} {name[:64]!r}" for part, name in foreign]
    return ", ".join(named[:4]) + (f" and {len(named) - 4} more" if len(named) > 4 else "")


def scheduled(workload: frozenset[Named], intrinsics: Iterable[ObjectGraph]) -> Vocabulary:
    """Return what a scheduled workload may have: the parts of the workload and of the intrinsics that its
    schedule uses, and what schedules add."""
    return _SCHEDULING.extended(workload).extended(one for graph in intrinsics for one in graph.named())
