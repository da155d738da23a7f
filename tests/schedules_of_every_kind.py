"""Schedules made by TVM's primitives. Together they have every kind of instruction in the schema."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import te, topi
from tvm.s_tir import Schedule

from compiler.lowering.tensor_intrinsics import VNNI, register
from tests.workloads import matmul, module


@dataclass(frozen=True)
class Scheduled:
    """A workload, and the primitives to apply to it."""

    make: Callable[[], tvm.IRModule]
    apply: Callable[[Schedule], object]

    def schedule(self) -> Schedule:
        schedule = Schedule(self.make(), seed=1, debug_mask="none")
        self.apply(schedule)
        return schedule


def _padded() -> tvm.IRModule:
    """The sums of a padded vector's windows of three elements."""
    data = te.placeholder((30,), name="data")
    padded = topi.nn.pad(data, (1,), (1,), name="padded")
    k = te.reduce_axis((0, 3), name="k")
    return module([data, te.compute((30,), lambda i: te.sum(padded[i + k], axis=k), name="window")])


def _steps() -> tvm.IRModule:
    data = te.placeholder((16, 32), name="data")
    doubled = te.compute((16, 32), lambda i, j: data[i, j] * 2.0, name="doubled")
    raised = te.compute((16, 32), lambda i, j: doubled[i, j] + 1.0, name="raised")
    return module([data, te.compute((16, 32), lambda i, j: te.exp(raised[i, j]), name="powered")])


def _resized() -> tvm.IRModule:
    data = te.placeholder((1, 2, 4, 4), name="data")
    how = ((0, 0, 0, 0), (8, 8), "NCHW", "nearest_neighbor", "asymmetric")
    return module([data, topi.image.resize2d(data, *how)])


def _bytes() -> tvm.IRModule:
    data, weight = te.placeholder((4, 32), "uint8", "data"), te.placeholder((32, 32), "int8", "weight")
    k = te.reduce_axis((0, 32), name="k")
    product = te.compute(
        (4, 32),
        lambda i, j: te.sum(data[i, k].astype("int32") * weight[j, k].astype("int32"), axis=k),
        name="T_matmul",
    )
    return module([data, weight, product])


def _added() -> tvm.IRModule:
    a, b = te.placeholder((16, 32), name="a"), te.placeholder((32, 16), name="b")
    c = te.placeholder((16, 16), name="c")
    return module([a, b, c, topi.add(topi.matmul(a, b), c)])


def _loops(schedule: Schedule, block: str = "T_matmul") -> list[Any]:
    return list(schedule.get_loops(schedule.get_sblock(block)))


def _tile(schedule: Schedule) -> None:
    block = schedule.get_sblock("T_matmul")
    i, j, k = schedule.get_loops(block)
    rows = schedule.split(i, schedule.sample_perfect_tile(i, 2))
    columns = schedule.split(j, schedule.sample_partitioned_tile(j, 3, 1, 2))
    schedule.split(k, [None, 4])
    schedule.reorder(rows[0], columns[0], rows[1], columns[1])
    schedule.annotate(
        block, "meta_schedule.unroll_explicit", schedule.sample_categorical([0, 16], [0.5, 0.5])
    )
    schedule.unannotate(block, "meta_schedule.unroll_explicit")
    schedule.annotate(rows[1], "pragma_auto_unroll_max_step", 16)
    schedule.parallel(schedule.fuse(rows[0], columns[0]))
    schedule.unroll(rows[1])
    schedule.vectorize(columns[2])
    schedule.enter_postproc()


def _move(schedule: Schedule) -> None:
    doubled, raised = schedule.get_sblock("doubled"), schedule.get_sblock("raised")
    schedule.get_producers(raised)
    schedule.get_consumers(raised)
    schedule.get_output_blocks(schedule.get_sblock("root"))
    schedule.get_child_blocks(schedule.get_sblock("root"))
    schedule.compute_at(doubled, schedule.sample_compute_location(doubled, decision=0))
    i, *_ = schedule.get_loops(raised)
    schedule.reverse_compute_at(schedule.get_sblock("powered"), i)
    schedule.reverse_compute_inline(schedule.get_sblock("powered"))
    schedule.compute_inline(doubled)


def _copy(schedule: Schedule) -> None:
    block = schedule.get_sblock("T_matmul")
    copied = schedule.cache_read(block, 0, "global", [block])
    schedule.storage_align(copied, 0, 0, 32, 8)
    schedule.set_scope(copied, 0, "shared")
    schedule.cache_write(block, 0, "local")


def _copy_by_index(schedule: Schedule) -> None:
    block = schedule.get_sblock("T_matmul")
    schedule.reindex_cache_read(block, 0, "global", lambda i, j, k: (k, i))
    schedule.reindex_cache_write(block, 0, "global", lambda i, j, k: (j, i))
    schedule.reindex(block, ("read", 1))


def _copy_at(schedule: Schedule) -> None:
    block = schedule.get_sblock("T_matmul")
    i, *_ = schedule.get_loops(block)
    schedule.read_at(i, block, 0, "shared")
    schedule.write_at(i, block, 0, "shared")


def _lay_out(schedule: Schedule) -> None:
    block = schedule.get_sblock("T_matmul")
    schedule.reorder_block_iter_var(block, [1, 0, 2])
    schedule.add_unit_loop(block)


def _lay_out_with_padding(schedule: Schedule) -> None:
    schedule.transform_block_layout(schedule.get_sblock("powered"), lambda i, j: (j, i))
    block = schedule.get_sblock("raised")
    schedule.transform_layout(block, ("write", 0), lambda i, j: (i, j // 5, j % 5), pad_value=0.0)


def _lay_out_an_operand(schedule: Schedule) -> None:
    schedule.transform_layout(schedule.get_sblock("T_matmul"), ("read", 1), lambda i, j: (j // 8, i, j % 8))


def _part(schedule: Schedule) -> None:
    i, _ = _loops(schedule, "doubled")
    schedule.loop_partition(i, [4, 8])


def _tensorize(schedule: Schedule) -> None:
    i, j, k = _loops(schedule)
    outer, inner = schedule.split(j, [None, 16])
    k_outer, k_inner = schedule.split(k, [None, 4])
    schedule.reorder(i, outer, k_outer, inner, k_inner)
    schedule.decompose_reduction(schedule.get_sblock("T_matmul"), k_outer)
    register(VNNI)
    schedule.tensorize(inner, VNNI)


def _blockize(schedule: Schedule) -> None:
    *_, j = _loops(schedule, "doubled")
    schedule.blockize(j)


def _roll(schedule: Schedule) -> None:
    i, _ = _loops(schedule, "window")
    outer, _ = schedule.split(i, [None, 2])
    padded = schedule.get_sblock("padded")
    schedule.compute_at(padded, outer)
    schedule.rolling_buffer(padded, 0)


def _merge(schedule: Schedule) -> None:
    *_, first = _loops(schedule, "doubled")
    *_, second = _loops(schedule, "raised")
    schedule.merge(first, second)


def _bind(schedule: Schedule) -> None:
    i, j, *_ = _loops(schedule)
    schedule.bind(i, "blockIdx.x")
    schedule.bind(j, "threadIdx.x")


def _product() -> tvm.IRModule:
    return matmul(16, 32, 64)


SCHEDULES = {
    "tile": Scheduled(_product, _tile),
    "bind": Scheduled(_product, _bind),
    "copy": Scheduled(_product, _copy),
    "copy by index": Scheduled(_product, _copy_by_index),
    "copy at": Scheduled(_product, _copy_at),
    "lay out": Scheduled(_product, _lay_out),
    "lay out an operand": Scheduled(_product, _lay_out_an_operand),
    "factor": Scheduled(_product, lambda schedule: schedule.rfactor(_loops(schedule)[2], 0)),
    "pad": Scheduled(
        _product, lambda schedule: schedule.pad_einsum(schedule.get_sblock("T_matmul"), [24, 32, 64])
    ),
    "move": Scheduled(_steps, _move),
    "lay out with padding": Scheduled(_steps, _lay_out_with_padding),
    "part": Scheduled(_steps, _part),
    "merge": Scheduled(_steps, _merge),
    "blockize": Scheduled(_steps, _blockize),
    "roll": Scheduled(_padded, _roll),
    "decompose": Scheduled(
        _padded,
        lambda schedule: schedule.decompose_padding(
            schedule.get_sblock("padded"), _loops(schedule, "padded")[0]
        ),
    ),
    "index": Scheduled(
        _resized, lambda schedule: schedule.cache_index(schedule.get_sblock("resize"), "global")
    ),
    "tensorize": Scheduled(_bytes, _tensorize),
    "epilogue": Scheduled(
        _added,
        lambda schedule: schedule.fuse_reduction_epilogue(
            schedule.get_sblock("T_matmul"), schedule.get_sblock("T_add")
        ),
    ),
}
