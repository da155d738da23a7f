"""Read a workload into the search's own form: TIR blocks become the nodes of a `Dag`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import ir, tirx
from tvm.s_tir import SBlock, SBlockRealize
from tvm.sym import detect_linear_equation

from search.dag import Access, Axis, AxisKind, Buffer, BufferRole, Dag, Index, Node, Term

ARITHMETIC = (tirx.Add, tirx.Sub, tirx.Mul, tirx.Div, tirx.Max, tirx.Min)
BRANCH_OPS = ("prim.if_then_else",)
# Calls that cost as much as many multiplications, and what they are counted as.
EXPENSIVE_FLOPS = 16.0


class NotCovered(Exception):
    """The search has no form for this subgraph; the message says what stands in the way."""


def read_dag(module: tvm.IRModule) -> Dag:
    """The computation of the workload's `main`. Raises NotCovered naming the first thing it can't express."""
    func = module["main"]
    root = func.body
    if not isinstance(root, SBlockRealize):
        raise NotCovered("the function is not made of blocks")
    names = _Names([*func.params, *root.block.alloc_buffers])
    nodes = tuple(_node(realize, names) for realize in _realizes(root.block.body))
    if not nodes:
        raise NotCovered("the function computes nothing")
    written = {node.write.buffer for node in nodes}
    buffers = (
        *(_buffer(p, names, BufferRole.INPUT) for p in func.params if names[p] not in written),
        *(_buffer(b, names, BufferRole.INTERMEDIATE) for b in root.block.alloc_buffers),
        *(_buffer(p, names, BufferRole.OUTPUT) for p in func.params if names[p] in written),
    )
    try:
        return Dag(nodes[-1].name, buffers, nodes)
    except ValueError as error:
        raise NotCovered(str(error)) from error


class _Names:
    """A name for every buffer, different ones for different buffers (TIR allows namesakes)."""

    def __init__(self, variables: Sequence[Any]) -> None:
        self._named: list[tuple[Any, str]] = []
        for variable in variables:
            taken = {name for _, name in self._named}
            candidates = (f"{variable.name}{suffix}" for suffix in ("", *range(1, len(taken) + 1)))
            self._named.append((variable, next(name for name in candidates if name not in taken)))

    def __getitem__(self, variable: Any) -> str:
        for known, name in self._named:
            if known.same_as(variable):
                return name
        raise NotCovered(f"buffer {variable.name} is neither an argument nor allocated by the function")


def _realizes(stmt: Any) -> Iterator[SBlockRealize]:
    """The blocks in program order; only perfect nests of serial loops are expected above them."""
    if isinstance(stmt, tirx.SeqStmt):
        for part in stmt:
            yield from _realizes(part)
    elif isinstance(stmt, tirx.For) and stmt.kind == tirx.ForKind.SERIAL:
        yield from _realizes(stmt.body)
    elif isinstance(stmt, SBlockRealize):
        yield stmt
    else:
        raise NotCovered(f"a {type(stmt).__name__} stands where a loop or a block is expected")


def _node(realize: SBlockRealize, names: _Names) -> Node:
    block: SBlock = realize.block
    store = block.body
    if not isinstance(store, tirx.BufferStore):
        raise NotCovered(f"block {block.name_hint} does more than store one value")
    if any(not isinstance(value, ir.Var) for value in realize.iter_values):
        raise NotCovered(f"block {block.name_hint} is not bound to plain loops")
    axes = tuple(_axis(block, var) for var in block.iter_vars)
    variables = [var.var for var in block.iter_vars]
    loads: dict[Access, None] = {}
    for load in _all(store.value, ir.TensorLoad):
        if not load.source.same_as(store.buffer):  # a reduction's own accumulator is no input
            loads[_access(names[load.source], load.indices, variables)] = None
    return Node(
        name=block.name_hint,
        axes=axes,
        write=_access(names[store.buffer], store.indices, variables),
        reads=tuple(loads),
        flops=_flops(store.value),
        has_branch=_has_branch(store.value),
        is_expensive=any(_is_expensive(call) for call in _all(store.value, ir.Call)),
    )


def _axis(block: SBlock, var: Any) -> Axis:
    if not isinstance(var.dom.extent, tirx.IntImm):
        raise NotCovered(f"axis {var.var.name} of {block.name_hint} has no fixed extent")
    kinds = {0: AxisKind.SPATIAL, 2: AxisKind.REDUCTION}
    if var.iter_type not in kinds:
        raise NotCovered(f"axis {var.var.name} of {block.name_hint} is neither spatial nor a reduction")
    return Axis(var.var.name, int(var.dom.extent), kinds[var.iter_type])


def _buffer(variable: Any, names: _Names, role: BufferRole) -> Buffer:
    typed = variable.ty
    if not isinstance(typed, tirx.BufferType) or not all(isinstance(e, tirx.IntImm) for e in typed.shape):
        raise NotCovered(f"{variable.name} is not a buffer of fixed shape")
    return Buffer(names[variable], tuple(int(extent) for extent in typed.shape), str(typed.dtype), role)


def _access(buffer: str, indices: Any, variables: list[Any]) -> Access:
    return Access(buffer, tuple(_index(i, variables) for i in indices))


def _index(expression: Any, variables: list[Any]) -> Index:
    coefficients = list(detect_linear_equation(expression, variables))
    if not coefficients or not all(isinstance(c, (int, tirx.IntImm)) for c in coefficients):
        return Index(_variables_in(expression, variables), affine=False)
    numbers = [int(c) for c in coefficients]
    terms = tuple(Term(axis, number) for axis, number in enumerate(numbers[:-1]) if number)
    return Index(terms, numbers[-1])


def _variables_in(expression: Any, variables: list[Any]) -> tuple[Term, ...]:
    used = _all(expression, ir.Var)
    return tuple(Term(i, 1) for i, var in enumerate(variables) if any(var.same_as(other) for other in used))


def _flops(value: Any) -> float:
    """Arithmetic on the stored value; index arithmetic is inside loads and not counted."""
    count = 0.0

    def visit(expression: Any) -> None:
        nonlocal count
        if isinstance(expression, ARITHMETIC):
            count += 1.0
            visit(expression.a)
            visit(expression.b)
        elif isinstance(expression, ir.Call):
            count += EXPENSIVE_FLOPS if _is_expensive(expression) else 0.0
            for argument in expression.args:
                visit(argument)
        elif isinstance(expression, tirx.Cast):
            visit(expression.value)

    visit(value)
    return count


def _has_branch(value: Any) -> bool:
    return bool(_all(value, tirx.Select)) or any(_op_name(c) in BRANCH_OPS for c in _all(value, ir.Call))


def _is_expensive(call: Any) -> bool:
    return _op_name(call) not in BRANCH_OPS


def _op_name(call: Any) -> str:
    return str(getattr(call.op, "name", call.op))


def _all(expression: Any, *kinds: type) -> list[Any]:
    found: list[Any] = []
    tvm_ffi.structural_walk(expression, [(kind, _collector(found)) for kind in kinds])
    return found


def _collector(found: list[Any]) -> Callable[[Any], None]:
    # list.append has no signature that the walker can inspect.
    def collect(value: Any) -> None:
        found.append(value)

    return collect
