"""Attention in blocks of queries, on CPUs and in one kernel of a GPU."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import tvm
from tvm import te, topi

from compiler.codegen.nvcc import compile_cubin
from compiler.importing.model import extract_tasks, fuse, read_onnx
from compiler.lowering.trace import lower
from compiler.measuring.builder import BuiltKernel, LocalBuilder
from compiler.measuring.runner import LocalRunner
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device
from compiler.workload import from_json, to_json
from core.device import Device
from search.programs.annotate import sample
from search.rules.space import generate
from search.sketches.sketch import Sketch
from search.sketches.stage import StageKind
from search.sketches.variables import fetch_kind
from tests.cuda_emulator.toolchain import find_nvdisasm, instructions
from tests.devices import GPU
from tests.gpu_programs import Candidate, Failure, compiled, failures
from tests.imported_cases import AttentionOfHalves, JoinedAttention
from tests.onnx_models import Builder
from tests.packing import with_constants
from tests.workloads import module

DEVICE = replace(detect_device(2), profile=None)
BUILDER, RUNNER = LocalBuilder(DEVICE.target), LocalRunner(DEVICE.target)


def _blocks(sketch: Sketch) -> list[int]:
    """Return the numbers of blocks of queries."""
    return [stage.blocks for stage in sketch.of_kind(StageKind.BLOCKS)]


class Case(NamedTuple):
    """An attention with some constant operands, and the numbers of blocks that are tried if the L2 cache has
    `l2_bytes`.
    """

    heads: int
    queries: int
    keys: int
    width: int
    masked: bool
    l2_bytes: int
    blocks: list[int]
    constants: list[int]


CASES = [
    Case(2, 48, 96, 16, False, 1 << 14, [3, 4, 6], []),  # at most 8 KiB of scores: 16, 12 or 8 queries
    Case(3, 40, 60, 12, True, 1 << 20, [1, 2, 4], [1]),  # no multiple of a vector divides the keys
    Case(1, 32, 64, 8, True, 1 << 10, [4], [2]),  # no block fits the cache
    Case(2, 48, 97, 16, False, 1 << 14, [], []),  # the keys are prime
]


def _attention(case: Case) -> tvm.IRModule:
    query = te.placeholder((case.heads, case.queries, case.width), name="query")
    key = te.placeholder((case.heads, case.width, case.keys), name="key")
    value = te.placeholder((case.heads, case.keys, case.width), name="value")
    mask = te.placeholder((1, 1, case.keys), name="mask")
    scores = topi.multiply(topi.nn.matmul(query, key), te.const(0.25, "float32"))
    weights = topi.nn.softmax(topi.add(scores, mask) if case.masked else scores)
    result = topi.transpose(topi.nn.matmul(weights, value), (1, 0, 2))
    return with_constants(
        module([query, key, value, *([mask] if case.masked else []), result]), case.constants
    )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_attention_in_blocks_computes_the_same(case: Case) -> None:
    workload = _attention(case)
    device = replace(DEVICE, l2_bytes=case.l2_bytes)
    found = [sketch for sketch in generate(read_dag(workload), device) if _blocks(sketch)]
    assert [blocks for sketch in found for blocks in _blocks(sketch)] == case.blocks
    rng = np.random.default_rng(0)
    for sketch in found:
        population = sample(sketch, 64, rng)
        program = population.program(int(rng.integers(len(population))))
        built = BUILDER.build(to_json(workload), lower(workload, program, DEVICE))
        assert isinstance(built, BuiltKernel), f"{program}\n{built.error}"
        measured = RUNNER.run(built, to_json(workload), (), best_s=1e-12)
        assert not measured.error, f"{program}\n{measured.error}"


def _model(
    queries: int, keys: int, scale: str = "Mul", masked: bool = False, is_causal: bool = False
) -> bytes:
    """An attention of two heads, whose queries, keys and values are inputs. A causal mask is a constant."""
    b = Builder()
    scaled = b.op(scale, b.op("MatMul", "query", "key"), b.constant(np.float32(4.0)))
    if is_causal:
        hidden = np.triu(np.full((queries, keys), -np.inf, np.float32), 1)
        scaled = b.op("Add", scaled, b.constant(hidden[None, None]))
    weights = b.op("Softmax", b.op("Add", scaled, "mask") if masked else scaled, axis=-1)
    result = b.op("Transpose", b.op("MatMul", weights, "value"), perm=[0, 2, 1, 3])
    inputs = {"query": [1, 2, queries, 8], "key": [1, 2, 8, keys], "value": [1, 2, keys, 8]}
    return b.model(inputs | ({"mask": [1, 1, 1, keys]} if masked else {}), {result: [1, queries, 2, 8]})


@pytest.mark.parametrize(
    ("model", "operators"),
    [
        (_model(16, 512), "matmul_multiply_softmax_matmul_permute_dims"),
        (_model(16, 512, "Div"), "matmul_divide_softmax_matmul_permute_dims"),
        (_model(24, 600, masked=True), "matmul_multiply_add_softmax_matmul_permute_dims"),
    ],
)
def test_attention_over_many_keys_is_one_task(model: bytes, operators: str) -> None:
    (task,) = extract_tasks(fuse(read_onnx(model, {}), DEVICE.target))
    assert task.name.split()[0] == operators
    assert task.layer == "matmul0"
    assert all(map(_blocks, generate(read_dag(from_json(task.module_json)), DEVICE)))


@pytest.mark.parametrize(("device", "keys"), [(DEVICE, 512), (GPU, 96)], ids=["CPU", "GPU"])
def test_a_constant_mask_is_an_argument(device: Device, keys: int) -> None:
    (task,) = extract_tasks(fuse(read_onnx(_model(16, keys, is_causal=True), {}), device.target))
    assert task.name.split()[0] == "matmul_multiply_add_softmax_matmul_permute_dims"
    shapes = [tuple(map(int, p.ty.shape)) for p in from_json(task.module_json)["main"].params]
    assert (1, 1, 16, keys) in [shapes[position] for position in task.constants]
    kind = StageKind.ATTENTION if device is GPU else StageKind.BLOCKS
    assert any(one.of_kind(kind) for one in generate(read_dag(from_json(task.module_json)), device))


def test_a_gpus_attention_is_one_task_unless_its_rows_are_long() -> None:
    (task,) = extract_tasks(fuse(read_onnx(_model(16, 97, masked=True), {}), GPU.target))
    assert task.name.split()[0] == "matmul_multiply_add_softmax_matmul_permute_dims"
    first = generate(read_dag(from_json(task.module_json)), GPU)[0]
    assert [stage.node for stage in first.of_kind(StageKind.ATTENTION)] == [first.stages[-1].node]
    assert len(extract_tasks(fuse(read_onnx(_model(16, 1032), {}), GPU.target))) == 4


# Keys and queries that tiles divide and don't, with a mask and without one, in two types.
GPU_CASES = [
    pytest.param(
        [
            JoinedAttention("attention", (2, 13, 49, 40, True)),
            AttentionOfHalves("attention", (2, 32, 64, 32, False), dtype="float16"),
        ],
        id="one of each type",
    ),
    pytest.param(
        [
            JoinedAttention("attention", (2, 32, 64, 32, False)),
            JoinedAttention("attention", (3, 40, 60, 12, True), batch=2),
            AttentionOfHalves("attention", (3, 40, 60, 12, True), dtype="float16", batch=2),
        ],
        id="others",
        marks=pytest.mark.slow_lane(seconds=10),
    ),
]
SPILLS = [
    pytest.param(JoinedAttention("attention", (12, 128, 128, 64, True)), id="float32"),
    pytest.param(AttentionOfHalves("attention", (12, 128, 128, 64, True), dtype="float16"), id="float16"),
]


@pytest.mark.slow
@pytest.mark.parametrize("cases", GPU_CASES)
def test_one_gpu_kernel_agrees_with_the_attention(cases: list[JoinedAttention]) -> None:
    results = []
    for case in cases:
        population = sample(generate(read_dag(case.module()), GPU)[0], 64, np.random.default_rng(0))
        rows = range(0, len(population), max(len(population) // 3, 1))
        results += [compiled(case, population.program(row)) for row in rows]
    found = [one for one in results if not isinstance(one, Failure)]
    wrong = [one for one in results if isinstance(one, Failure)] + failures(found)
    assert not wrong, "\n\n".join(map(str, wrong))


def test_halves_that_are_computed_from_floats_are_fetched_in_shorter_vectors() -> None:
    """TVM generates invalid code for vectors of eight float32, and a softmax is computed in float32."""
    case = AttentionOfHalves("attention", (2, 32, 64, 32, False), dtype="float16")
    found = set()
    for sketch in generate(read_dag(case.module()), GPU):
        if sketch.of_kind(StageKind.ATTENDED):
            continue
        weights, values = (
            sketch.choice(stage.node, fetch_kind(name))
            for stage in (*sketch.tiled, *sketch.of_kind(StageKind.TENSOR))
            for name in stage.shared
            if stage.node == "matmul1"
        )
        assert weights is not None
        assert values is not None
        found.add((max(weights.numbers), max(values.numbers)))
    assert found == {(4, 8)}


@pytest.mark.slow
@pytest.mark.skipif(find_nvdisasm() is None, reason="nvidia-cuda-nvdisasm isn't installed")
@pytest.mark.parametrize("case", SPILLS)
def test_scores_stay_in_shared_memory_and_registers(case: JoinedAttention, tmp_path: Path) -> None:
    population = sample(generate(read_dag(case.module()), GPU)[0], 64, np.random.default_rng(0))
    tiles = np.stack(
        [population.chosen(population.sketch.stages[-1].node, kind) for kind in ("warps", "queries")]
    )
    program = population.program(int(np.flatnonzero((tiles == 4).all(axis=0))[0]))
    candidate = compiled(case, program)
    assert isinstance(candidate, Candidate), candidate
    assert (
        candidate.source.count("__global__ void __launch_bounds__(128) main_kernel(") == 2
    )  # declared, defined
    cubin, resources = compile_cubin(candidate.source, "sm_90")
    assert resources is not None
    assert resources.spilled_bytes == 0
    (tmp_path / "cubin").write_bytes(cubin)
    found = instructions(tmp_path / "cubin")
    # Lanes of a warp exchange maxima and sums. STL and LDL would be local memory.
    assert {"SHFL", "STS", "LDS", "FFMA", "STG"} <= set(found)
    assert not {"STL", "LDL"} & set(found)


@pytest.mark.parametrize(
    ("queries", "keys"),
    [
        pytest.param(16, 256, id="few keys"),
        pytest.param(2, 512, id="few queries"),
        pytest.param(16, 521, id="a prime number of keys"),
    ],
)
def test_attentions_of_other_forms_are_separate_tasks(queries: int, keys: int) -> None:
    tasks = extract_tasks(fuse(read_onnx(_model(queries, keys), {}), DEVICE.target))
    assert [task.layer for task in tasks] == ["matmul0", "softmax2", "matmul3", "transpose4"]
