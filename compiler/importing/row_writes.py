"""A kernel that writes the rows of new tokens into a decoder's cache in place."""

from __future__ import annotations

from tvm import relax, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.tirx.script import builder as T  # noqa: N812 - as in TVM

from compiler.constants.fold import static_shape
from compiler.importing.spec import Shape

# TVM's OpPatternKind kOpaque: such functions are never fused.
_OPAQUE = 8


def write_rows(
    builder: relax.BlockBuilder, buffer: relax.Var, rows: relax.Expr, position: relax.Var, axis: int
) -> relax.Expr:
    """Return a call that writes rows into a buffer along an axis, from `position` on, and returns the buffer.

        buffer[:, position : position + count] = rows

    Negative rows count from the end, as in ScatterElements. Rows outside are dropped. The kernel isn't tuned.
    """
    shape, written = static_shape(buffer), static_shape(rows)
    assert shape is not None
    assert written is not None
    dtype = str(buffer.ty.dtype)
    name = builder.add_func(_kernel(shape, written, dtype, axis), "write_rows")
    arguments = relax.Tuple([buffer, rows, position])
    return relax.op.call_tir_inplace(name, arguments, 0, relax.TensorType(shape, dtype))


def _kernel(shape: Shape, written: Shape, dtype: str, axis: int) -> tirx.PrimFunc:
    with IRBuilder() as made, T.prim_func(s_tir=True, is_private=True):
        T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True, "op_pattern": _OPAQUE})
        buffer = T.arg("buffer", T.buffer([T.int64(n) for n in shape], dtype))
        rows = T.arg("rows", T.buffer([T.int64(n) for n in written], dtype))
        position = T.arg("position", T.buffer((T.int64(1),), "int64"))
        with T.grid(*map(T.int64, written)) as loops:
            place = loops[axis] + position[0]
            row = tirx.Select(place < 0, place + shape[axis], place)
            with T.If(tirx.all(row >= 0, row < shape[axis])), T.Then():
                T.buffer_store(buffer, rows[tuple(loops)], [*loops[:axis], row, *loops[axis + 1 :]])
    return made.get()
