"""Convert a workload to the search's representation: TIR blocks become the nodes of a `Dag`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tvm
from tvm import tirx
from tvm.s_tir import SBlock, SBlockRealize, Schedule

from compiler.reading.blocks import BlockReader, UnsupportedSubgraph, distinct
from compiler.tir_nodes import find_all
from compiler.vocabulary import NARROW_BUFFERS
from search.dag import Buffer, BufferRole, Dag, Node

__all__ = ["UnsupportedSubgraph", "read_dag"]

# Constant matrices up to this size become part of the code. Winograd's have 12 to 64 elements.
MAX_CONSTANT_ELEMENTS = 256


def read_dag(module: tvm.IRModule) -> Dag:
    """Convert the computation of the workload's `main`. A node's axes are the loops around its block in a
    schedule. Raises UnsupportedSubgraph, which names the first thing that the search can't represent."""
    func = module["main"]
    root = _root(func)
    names = _names([*func.params, *root.alloc_buffers])
    nests = list(_nests(root.body, ()))
    nodes = tuple(BlockReader(realize, loops, names).node() for realize, loops in nests)
    buffers = tuple(_buffers(func, names, {write.buffer for node in nodes for write in node.writes}))
    try:
        dag = Dag(nodes[-1].name, buffers, nodes)
    except ValueError as error:
        raise UnsupportedSubgraph(str(error)) from error
    _check_bindings(module, nodes)
    constants = {
        node.write.buffer
        for node in nodes
        if not node.reads and node.iterations <= MAX_CONSTANT_ELEMENTS and not node.is_expensive
    }
    return replace(dag, nodes=tuple(_with_constant_axes(node, constants) for node in nodes))


def _root(func: Any) -> SBlock:
    """Return the block around all others."""
    body = getattr(func, "body", None)
    if not isinstance(body, SBlockRealize):
        raise UnsupportedSubgraph("the function is not made of blocks")
    if not find_all(body.block.body, SBlock):
        raise UnsupportedSubgraph(f"block {body.block.name_hint} computes several values in one block")
    return body.block


def named_buffers(func: Any) -> Mapping[str, Any]:
    """Return the function's buffers by their names in its dag."""
    root = _root(func)
    return {name: buffer for buffer, name in _names([*func.params, *root.alloc_buffers]).items()}


def _names(variables: Sequence[Any]) -> Mapping[Any, str]:
    """Return a unique name for every buffer, because several may have the same name in TIR."""
    return dict(zip(variables, distinct([variable.name for variable in variables]), strict=True))


def _nests(statement: Any, loops: tuple[Any, ...]) -> Iterator[tuple[SBlockRealize, tuple[Any, ...]]]:
    """Yield the blocks in program order, each with the loops around it. Blocks that share a loop raise
    UnsupportedSubgraph."""
    match statement:
        case tirx.SeqStmt() if not loops:
            for part in statement:
                yield from _nests(part, loops)
        case tirx.SeqStmt():
            raise UnsupportedSubgraph(f"{_blocks(statement)} share the loop {loops[-1].loop_var.name}")
        case tirx.For():
            _check_loop(statement)
            yield from _nests(statement.body, (*loops, statement))
        case SBlockRealize():
            yield statement, loops
        case _:
            raise UnsupportedSubgraph(
                f"a {type(statement).__name__} stands where a loop or a block is expected"
            )


def _check_loop(loop: Any) -> None:
    where = f"{_blocks(loop.body)}: the loop {loop.loop_var.name}"
    if loop.kind != tirx.ForKind.SERIAL:
        raise UnsupportedSubgraph(f"{where} is {tirx.ForKind(loop.kind).name.lower()}")
    if not isinstance(loop.extent, tirx.IntImm):
        raise UnsupportedSubgraph(f"{where} has no fixed extent")
    if int(loop.extent) < 1:
        raise UnsupportedSubgraph(f"{where} has no iterations")
    if not isinstance(loop.min, tirx.IntImm) or int(loop.min) or loop.step is not None:
        raise UnsupportedSubgraph(f"{where} doesn't count from zero by ones")


def _blocks(statement: Any) -> str:
    names = [block.name_hint for block in find_all(statement, SBlock)]
    return f"{'blocks' if len(names) > 1 else 'block'} {' and '.join(names)}" if names else "no block"


def _buffers(func: Any, names: Mapping[Any, str], written: set[str]) -> Iterator[Buffer]:
    """Yield inputs, intermediate results and outputs, in this order."""
    attrs = func.attrs or {}
    layout_free, narrow = (
        {int(number) for number in attrs.get(name, ())} for name in ("layout_free_buffers", NARROW_BUFFERS)
    )
    for number, variable in enumerate(func.params):
        if names[variable] not in written:
            buffer = _buffer(variable, names, BufferRole.INPUT)
            yield replace(buffer, constant=number in layout_free, narrow=number in narrow)
    for variable in func.body.block.alloc_buffers:
        yield _buffer(variable, names, BufferRole.INTERMEDIATE)
    for variable in func.params:
        if names[variable] in written:
            yield _buffer(variable, names, BufferRole.OUTPUT)


def _buffer(variable: Any, names: Mapping[Any, str], role: BufferRole) -> Buffer:
    typed = variable.ty
    if not isinstance(typed, tirx.BufferType) or not all(isinstance(e, tirx.IntImm) for e in typed.shape):
        raise UnsupportedSubgraph(f"{variable.name} is not a buffer of fixed shape")
    return Buffer(names[variable], tuple(map(int, typed.shape)), str(typed.dtype), role)


def _check_bindings(module: tvm.IRModule, nodes: Sequence[Node]) -> None:
    """Refuse blocks whose loops TVM can't reorder, because it doesn't recognize their bindings as affine."""
    try:
        schedule = Schedule(module, debug_mask="none")
    except Exception as error:  # TVM's C++ code may raise any exception class
        raise UnsupportedSubgraph(
            f"TVM can't schedule the function: {str(error).strip().splitlines()[-1]}"
        ) from error
    for node in nodes:
        block = schedule.get_sref(schedule.get_sblock(node.name))
        if not schedule.state._get_cached_flags(block).affine_binding:
            raise UnsupportedSubgraph(
                f"block {node.name} is bound to its loops in a way that TVM can't reorder"
            )


def _with_constant_axes(node: Node, constants: set[str]) -> Node:
    """Mark the axes of a reduction over small constant matrices: their loops are unrolled."""
    if not node.reduction:
        return node
    axes = {axis for read in node.reads if read.buffer in constants for axis in read.axes}
    return replace(node, constant_axes=tuple(sorted(axes)))
