"""Handwritten traces that pack constants."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm.s_tir import Schedule

from compiler.lowering.trace import trace_of

MARK = "meta_schedule.layout_rewrite_preproc"


def with_constants(mod: tvm.IRModule, constants: Sequence[int]) -> tvm.IRModule:
    return tvm.IRModule({"main": mod["main"].with_attr("layout_free_buffers", list(constants))})


def pack(sch: Schedule, block: Any, param: Any, width: int) -> None:
    """Pack the innermost axis of `param` in pieces of `width`, pieces outermost, the last zero-padded."""
    reads = [region.source for region in sch.get(block).reads]
    index = next(i for i, source in enumerate(reads) if source.same_as(param))
    copy = sch.cache_read(block, index, "global")

    def blocked(*axes: Any) -> list[Any]:
        return [axes[-1] // width, *axes[:-1], axes[-1] % width]

    padding = 0.0 if "float" in str(param.ty.dtype) else 0
    is_divided = int(param.ty.shape[-1]) % width == 0
    sch.transform_layout(block, ("read", index), blocked, pad_value=None if is_divided else padding)
    sch.annotate(copy, MARK, True)


def tile(sch: Schedule, block: Any, axis: int, width: int) -> None:
    """Vectorize an axis by `width`, innermost, and decompose the reduction."""
    loops = sch.get_loops(block)
    outer, inner = sch.split(loops[axis], [None, width])
    rest = loops[axis + 1 :]
    sch.reorder(*loops[:axis], outer, *rest, inner)
    sch.parallel(loops[0])
    sch.vectorize(inner)
    sch.decompose_reduction(block, rest[0])


def packed_twice(workload: tvm.IRModule, block: str, operand: int) -> str:
    """A trace that marks a copy of a copy, which nothing splits."""
    sch = Schedule(workload, debug_mask="none")
    copy = sch.cache_read(sch.get_sblock(block), operand, "global")
    for marked in (copy, sch.cache_read(copy, 0, "global")):
        sch.annotate(marked, MARK, True)
    return trace_of(sch)


def packed_everywhere(mod: tvm.IRModule, width: int, operands: Sequence[int] | None = None) -> str | None:
    """Return a trace that packs the constant operands, or those at `operands`; None if there are none."""
    func = mod["main"]
    sch = Schedule(mod, debug_mask="none")
    blocks = sch.get_child_blocks(sch.get_sblock("root"))
    given = [func.params[i] for i in (func.attrs["layout_free_buffers"] if operands is None else operands)]
    params = [param for param in given if len(param.ty.shape)]
    for param in params:
        readers = [b for b in blocks if any(read.source.same_as(param) for read in sch.get(b).reads)]
        pack(sch, readers[0], param, width)
    return trace_of(sch) if params else None
