"""How many operations of each kind a stored value takes: what Ansor's features count (paper, appendix B)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import ir, tirx

from compiler.reading.indices import find_all
from search.dag import Operations

SUMS = (tirx.Add, tirx.Sub)
QUOTIENTS = (tirx.Div, tirx.Mod, tirx.FloorDiv, tirx.FloorMod)
COMPARISONS = (tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.Max, tirx.Min)
BRANCH_OPS = ("if_then_else",)
LOGIC = (tirx.And, tirx.Or, tirx.Not)


def operations(values: Sequence[Any]) -> Operations:
    """Of all values together, what is inside indices included."""
    counts = dict.fromkeys(Operations._fields, 0)
    for value in values:
        for found in find_all(value, *SUMS, tirx.Mul, *QUOTIENTS, *COMPARISONS, *LOGIC, tirx.Select, ir.Call):
            counts[_kind(found)] += 1
    return Operations(**counts)


def _kind(found: Any) -> str:
    if isinstance(found, LOGIC):
        return "logic"
    if isinstance(found, tirx.Select):
        return "select"
    operand = found.a if isinstance(found, COMPARISONS) else found
    prefix = "float" if "float" in str(operand.ty.dtype) else "int"
    if isinstance(found, ir.Call):
        return f"{prefix}_call" if op_name(found) in BRANCH_OPS else f"{prefix}_function"
    for name, kinds in (("sum", SUMS), ("quotient", QUOTIENTS), ("comparison", COMPARISONS)):
        if isinstance(found, kinds):
            return f"{prefix}_{name}"
    return f"{prefix}_product"


def op_name(call: Any) -> str:
    """Without the dialect that it belongs to, of which some have several."""
    return str(getattr(call.op, "name", call.op)).rpartition(".")[2]
