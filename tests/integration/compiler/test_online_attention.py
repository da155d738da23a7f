"""Attention in one GPU kernel with an online softmax."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import te, topi

from compiler.codegen.nvcc import compile_cubin
from compiler.codegen.online_attention import NoAttention, write_attention
from compiler.lowering.trace import apply_trace, lower
from compiler.measuring.expected import Expected
from compiler.measuring.rounding import Rounding
from compiler.precision import tf32
from compiler.reading.subgraph import read_dag
from search.rules.space import generate
from search.sketches.sketch import Sketch
from search.sketches.stage import StageKind
from tests.choices import choose
from tests.cuda_emulator.emulator import compile_batch, host_code
from tests.cuda_emulator.toolchain import find_nvdisasm, instructions
from tests.devices import GPU
from tests.floats import in_tf32
from tests.gpu_programs import TARGET, Candidate, compiled, failures
from tests.imported_cases import AttentionInTf32, AttentionOfHalves, GroupedAttention, GroupedAttentionInTf32
from tests.suite import Case

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def _sketch(module: tvm.IRModule) -> Sketch:
    found = generate(read_dag(module), GPU)
    (sketch,) = (sketch for sketch in found if sketch.of_kind(StageKind.ONLINE_ATTENTION))
    return sketch


def _compiled(case: Case, options: Mapping[str, int]) -> Candidate:
    found = compiled(case, choose(_sketch(case.module()), options))
    assert isinstance(found, Candidate), str(found)
    return found


def _tile(warps: int, rows: int, columns: int, stages: int, parts: int = 1) -> dict[str, int]:
    sizes = {"warps": warps, "fragments i": rows, "fragments j": columns, "stages": stages}
    return sizes | {"parts": parts}


@pytest.mark.parametrize(
    ("case", "tiles"),
    [
        pytest.param(
            AttentionOfHalves("attention", (2, 19, 83, 40, True), dtype="float16"),
            [_tile(2, 1, 2, 2), _tile(1, 2, 1, 3), _tile(1, 1, 8, 1)],
            id="odd sizes",
            marks=pytest.mark.slow_lane(seconds=4),
        ),
        pytest.param(
            AttentionOfHalves("attention", (2, 33, 70, 24, True), batch=2, dtype="bfloat16"),
            [_tile(2, 1, 2, 2), _tile(1, 1, 4, 1)],
            id="bfloat16",
        ),
        pytest.param(
            AttentionOfHalves("attention", (1, 16, 1100, 16, True), dtype="float16"),
            [_tile(1, 1, 8, 2)],
            id="more keys than shared memory",
        ),
        pytest.param(
            GroupedAttention("attention", (8, 18, 70, 24, True), dtype="bfloat16"),
            [_tile(2, 1, 2, 2), _tile(1, 2, 4, 1)],
            id="grouped heads",
            marks=pytest.mark.slow_lane(seconds=4),
        ),
        pytest.param(
            GroupedAttentionInTf32("attention", (8, 18, 70, 24, True), dtype="float32"),
            [_tile(2, 1, 2, 2), _tile(1, 2, 4, 1)],
            id="grouped heads in TF32",
            marks=pytest.mark.slow_lane(seconds=4),
        ),
        pytest.param(
            AttentionInTf32("attention", (2, 19, 83, 40, True)),
            [_tile(2, 1, 2, 2), _tile(1, 2, 1, 3), _tile(1, 1, 8, 1)],
            id="TF32",
            marks=pytest.mark.slow_lane(seconds=4),
        ),
        pytest.param(
            AttentionOfHalves("attention", (2, 19, 83, 40, True), dtype="float32"),
            [_tile(2, 1, 2, 2), _tile(1, 2, 1, 3), _tile(1, 1, 8, 1)],
            id="float32",
            marks=pytest.mark.slow_lane(seconds=4),
        ),
        pytest.param(
            AttentionOfHalves("attention", (1, 16, 1100, 16, True), dtype="float32"),
            [_tile(1, 1, 8, 2)],
            id="float32 and more keys than shared memory",
        ),
        pytest.param(
            AttentionOfHalves("attention", (3, 64, 64, 64, False), dtype="float16"),
            [_tile(4, 1, 2, 2), _tile(2, 2, 4, 1)],
            id="whole tiles",
            marks=pytest.mark.slow_lane(seconds=4),
        ),
    ],
)
def test_the_kernel_agrees_with_the_attention(case: Case, tiles: list[dict[str, int]]) -> None:
    wrong = failures([_compiled(case, tile) for tile in tiles])
    assert not wrong, "\n\n".join(map(str, wrong))


def _in_float32(value: Any) -> Any:
    return value.astype("float32")


@dataclass(frozen=True)
class Ordered(Case):
    """An attention without a mask. Its shape is heads, queries, keys, width, and whether keys and values lie
    in memory by the rows of a matrix product's right operand. Its type may be "tf32".
    """

    def __str__(self) -> str:
        return f"ordered {super().__str__()}"

    def module(self) -> tvm.IRModule:
        heads, queries, keys, width, *by_rows = self.shape
        dtype = "float32" if self.dtype == "tf32" else self.dtype
        take = tf32.rounded if self.dtype == "tf32" else _in_float32
        shapes = [(width, keys), (keys, width)]
        shapes = [shape if by_row else shape[::-1] for shape, by_row in zip(shapes, by_rows, strict=True)]
        query = te.placeholder((heads, queries, width), dtype, "query")
        key, value = (
            te.placeholder((heads, *shape), dtype, name)
            for name, shape in zip(("key", "value"), shapes, strict=True)
        )
        d, t = te.reduce_axis((0, width), "d"), te.reduce_axis((0, keys), "t")
        scores = te.compute(
            (heads, queries, keys),
            lambda h, i, j: te.sum(
                take(query[h, i, d]) * take(key[(h, d, j) if by_rows[0] else (h, j, d)]), axis=[d]
            ),
            name="scores",
        )
        weights = topi.nn.softmax(scores)
        weights = weights if dtype == "float32" else topi.cast(weights, dtype)
        values = te.compute(
            (heads, queries, width),
            lambda h, i, c: te.sum(
                take(weights[h, i, t]) * take(value[(h, t, c) if by_rows[1] else (h, c, t)]), axis=[t]
            ),
            name="values",
        )
        values = values if dtype == "float32" else topi.cast(values, dtype)
        function = te.create_prim_func([query, key, value, topi.transpose(values, (1, 0, 2))])
        return tvm.IRModule({"main": function.with_attr("tirx.noalias", True)})

    def reference(self, inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        taken = [in_tf32(one) if self.dtype == "tf32" else one for one in inputs]
        query, key, value = (one.astype(np.float64) for one in taken)
        keys_by_rows, values_by_rows = self.shape[-2:]
        scores = query @ (key if keys_by_rows else key.transpose(0, 2, 1))
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        return np.asarray(
            (weights @ (value if values_by_rows else value.transpose(0, 2, 1))).transpose(1, 0, 2)
        )

    def difference(self, actual: NDArray[Any], expected: NDArray[Any]) -> str:
        rounding = Rounding.of(self.module()["main"])
        return Expected.of(expected.astype(actual.dtype), None, rounding).difference(actual)


@pytest.mark.slow_lane(seconds=4)
@pytest.mark.parametrize(
    "case",
    [
        AttentionOfHalves("attention", (2, 19, 83, 40, True), dtype="float16"),
        AttentionInTf32("attention", (1, 17, 83, 24, True)),
        AttentionOfHalves("attention", (1, 35, 90, 24, True), dtype="float32"),
        Ordered("attention", (1, 20, 83, 24, True, True), dtype="float16"),
        Ordered("attention", (1, 20, 83, 24, False, False), dtype="float32"),
    ],
    ids=["float16", "TF32", "float32", "by rows", "by columns"],
)
def test_warps_may_share_queries(case: Case) -> None:
    """Some warps have only keys beyond the last in the last step, and in small steps in all of them."""
    tiles = [_tile(2, 1, 1, 2, parts=2), _tile(4, 1, 2, 1, parts=2), _tile(4, 2, 1, 1, parts=4)]
    found = [_compiled(case, tile) for tile in tiles]
    # Values are exchanged where tiles may have been: TVM makes all warps wait until they are read.
    assert all(re.search(r"__syncthreads\(\);\s+tensor_cores::add_parts<", one.source) for one in found)
    wrong = failures(found)
    assert not wrong, "\n\n".join(map(str, wrong))


@pytest.mark.slow_lane(seconds=4)
@pytest.mark.parametrize("dtype", ["float16", "tf32", "float32"])
@pytest.mark.parametrize("by_rows", [(True, False), (False, True)], ids=["values turned", "keys turned"])
def test_keys_and_values_may_be_turned(dtype: str, by_rows: tuple[bool, bool]) -> None:
    case = Ordered("attention", (1, 20, 40, 24, *by_rows), dtype=dtype)
    wrong = failures([_compiled(case, tile) for tile in (_tile(1, 2, 2, 1), _tile(2, 1, 1, 2))])
    assert not wrong, "\n\n".join(map(str, wrong))


@pytest.mark.parametrize(
    "masked",
    [
        pytest.param(slice(0, 20), id="first keys"),
        pytest.param(slice(20, None), id="last keys", marks=pytest.mark.slow_lane(seconds=1)),
        pytest.param(slice(None), id="all keys"),
    ],
)
@pytest.mark.parametrize(
    ("kind", "dtype"),
    [(AttentionOfHalves, "float16"), (AttentionInTf32, "float32"), (AttentionOfHalves, "float32")],
    ids=["float16", "TF32", "float32"],
)
def test_nan_stays_in_its_query_and_infinite_masks_hide_keys(
    kind: type[AttentionOfHalves], dtype: str, masked: slice, tmp_path: Path
) -> None:
    """A block of keys that are all hidden comes first, last or alone. Scores grow from block to block."""
    case = kind("attention", (1, 18, 50, 16, True), dtype=dtype)
    found = _compiled(case, _tile(1, 2, 1, 2))
    query, key, mask, value, result = case.arguments()
    key *= np.linspace(0.5, 4, 50).astype(key.dtype)
    mask[..., masked] = -np.inf
    query[0, 0, 3, 0] = np.nan
    with np.errstate(invalid="ignore"):
        expected = case.reference([query, key, mask, value])
    (program,) = compile_batch([(found.source, host_code(found.module, TARGET))], tmp_path)
    program.run([query, key, mask, value, result], 1)
    np.testing.assert_allclose(result.astype(np.float64), expected, atol=4e-3, equal_nan=True)
    rows = np.isnan(result).any(axis=(0, 2, 3))
    assert list(np.flatnonzero(rows)) == (list(range(18)) if masked == slice(None) else [3])


def _unspilled_instructions(found: Candidate, folder: Path) -> Counter[str]:
    """Count a kernel's instructions for compute capability 9.0, and check that no register is spilled."""
    cubin, resources = compile_cubin(found.source, "sm_90")
    assert resources is not None
    assert resources.spilled_bytes == 0
    (folder / "cubin").write_bytes(cubin)
    return instructions(folder / "cubin")


@pytest.mark.slow_lane(seconds=4)
@pytest.mark.skipif(find_nvdisasm() is None, reason="nvidia-cuda-nvdisasm isn't installed")
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_parts_of_keys_stay_in_registers_until_they_are_added_up(dtype: str, tmp_path: Path) -> None:
    case = AttentionOfHalves("attention", (12, 16, 2048, 64, True), dtype=dtype)
    found = _compiled(case, _tile(4, 1, 4, 2, parts=4))
    counts = _unspilled_instructions(found, tmp_path)
    assert not {"STL", "LDL"} & set(counts), "nothing lies in local memory"


@pytest.mark.skipif(find_nvdisasm() is None, reason="nvidia-cuda-nvdisasm isn't installed")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_scores_stay_in_registers(dtype: str, tmp_path: Path) -> None:
    case = AttentionOfHalves("attention", (12, 64, 2048, 64, True), dtype=dtype)
    found = _compiled(case, _tile(4, 1, 4, 2))
    counts = _unspilled_instructions(found, tmp_path)
    # Fragments, products, asynchronous copies, and lanes that exchange maxima and sums.
    assert {"LDSM", "HMMA", "LDGSTS", "SHFL"} <= set(counts)
    # 2 products of 64 x 64 keys in each warp, each of 16 x 8 x 16.
    assert counts["HMMA"] >= 2 * 4 * 8
    assert not {"STL", "LDL"} & set(counts), "nothing lies in local memory"
    # Vectors of 8 elements by 128 threads.
    assert counts["STS"] == 64 * 64 // 8 // 128, "only queries are stored to shared memory"


@pytest.mark.skipif(find_nvdisasm() is None, reason="nvidia-cuda-nvdisasm isn't installed")
def test_products_in_tf32_are_instructions_of_tensor_cores(tmp_path: Path) -> None:
    found = _compiled(AttentionInTf32("attention", (12, 64, 2048, 64, True)), _tile(4, 1, 4, 2))
    assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in found.source
    counts = _unspilled_instructions(found, tmp_path)
    assert {"LDSM", "HMMA", "LDGSTS", "SHFL"} <= set(counts)
    # 2 products of 64 x 64 keys in each warp, each of 16 x 8 x 8.
    assert counts["HMMA"] >= 2 * 8 * 8
    assert not {"STL", "LDL"} & set(counts), "nothing lies in local memory"
    # Vectors of 4 elements by 128 threads.
    assert counts["STS"] == 64 * 64 // 4 // 128, "only queries are stored to shared memory"


@pytest.mark.skipif(find_nvdisasm() is None, reason="nvidia-cuda-nvdisasm isn't installed")
@pytest.mark.parametrize(
    ("warps", "rows", "columns"),
    [
        (4, 1, 4),
        pytest.param(4, 2, 4, marks=pytest.mark.slow_lane(seconds=4)),
        pytest.param(2, 2, 8, marks=pytest.mark.slow_lane(seconds=4)),
    ],
)
def test_float32_is_multiplied_from_registers(warps: int, rows: int, columns: int, tmp_path: Path) -> None:
    case = AttentionOfHalves("attention", (12, 64, 2048, 64, True), dtype="float32")
    found = _compiled(case, _tile(warps, rows, columns, 2))
    counts = _unspilled_instructions(found, tmp_path)
    assert {"FFMA", "LDS", "LDGSTS", "SHFL"} <= set(counts)
    assert not {"STL", "LDL", "HMMA"} & set(counts), "nothing lies in local memory or is rounded"
    # Four keys of each fragment are multiplied with all columns of 16 * rows values, two to a lane.
    assert counts["FFMA"] >= columns * 4 * 4 * 2 * rows * 4
    # A load of four values serves as many products as the lane has rows, for four columns each.
    assert counts["FFMA"] >= 2 * 4 * rows * counts["LDS"] * 0.8


def _attention(weigh: Callable[[Any], Any]) -> tvm.IRModule:
    """An attention of float16 with other weights than a softmax."""
    query, key = (te.placeholder((2, 32, 16), "float16", name) for name in ("query", "key"))
    value = te.placeholder((2, 32, 16), "float16", name="value")
    d, t = te.reduce_axis((0, 16), "d"), te.reduce_axis((0, 32), "t")

    def product(a: Any, b: Any) -> Any:
        return a.astype("float32") * b.astype("float32")

    scores = te.compute(
        (2, 32, 32), lambda h, i, j: te.sum(product(query[h, i, d], key[h, j, d]), axis=[d]), name="scores"
    )
    weights = topi.cast(weigh(scores), "float16")
    values = te.compute(
        (2, 32, 16),
        lambda h, i, c: te.sum(product(weights[h, i, t], value[h, t, c]), axis=[t]),
        name="values",
    )
    result = topi.transpose(values, (1, 0, 2))
    function = te.create_prim_func([query, key, value, result])
    return tvm.IRModule({"main": function.with_attr("tirx.noalias", True)})


def _of_doubled_scores(scores: Any) -> Any:
    """exp(2 * scores - max(scores)) / sum(exp(scores - max(scores)))"""
    largest = topi.max(scores, axis=-1, keepdims=True)
    total = topi.sum(topi.exp(topi.subtract(scores, largest)), axis=-1, keepdims=True)
    doubled = topi.multiply(scores, te.const(2.0, "float32"))
    return topi.divide(topi.exp(topi.subtract(doubled, largest)), total)


def test_only_a_softmax_is_computed_online() -> None:
    module = _attention(topi.nn.softmax)
    program = choose(_sketch(module), _tile(1, 1, 1, 1))
    write_attention(apply_trace(module, lower(module, program, GPU)))
    other = _attention(_of_doubled_scores)
    with pytest.raises(NoAttention, match="softmax"):
        write_attention(apply_trace(other, lower(other, choose(_sketch(other), _tile(1, 1, 1, 1)), GPU)))
