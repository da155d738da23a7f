"""Random programs for GPUs, from the operators of the suite: lowered, compiled, run and compared.

Without a GPU, CUDA's compilers check the code, and an emulator of threads and barriers runs it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
from numpy.typing import NDArray
from tvm import te

from compiler.codegen.nvcc import compile_cubin
from compiler.reading.subgraph import read_dag
from compiler.variants import tf32
from search.programs.annotate import sample
from search.rules.space import generate
from search.sketches.stage import StageKind
from tests.choices import choose
from tests.cuda_emulator.toolchain import find_nvdisasm, instructions, load_bits
from tests.devices import GPU
from tests.floats import in_tf32
from tests.gpu_programs import CAPABILITY, Candidate, Failure, compiled, draw, failures
from tests.imported_cases import GeluProduct, ImportedSoftmax
from tests.marks import slow_lane_except
from tests.suite import SHAPES, Case, cases


class Tf32Case(Case):
    """A matrix product or a convolution of float32 whose factors are rounded to TF32."""

    def __str__(self) -> str:
        return f"{super().__str__()}-tf32"

    def module(self) -> tvm.IRModule:
        *inputs, _ = super().module()["main"].params
        left, right = (
            te.placeholder([int(extent) for extent in one.ty.shape], name=one.name) for one in inputs
        )
        if self.operator == "GMM":
            result = tf32.product(left, right)
        else:
            stride, padding = self.shape[5:]
            result = tf32.convolution(left, right, [stride] * 2, [padding] * 4, [1] * 2)
        function = te.create_prim_func([left, right, result])
        return tvm.IRModule({"main": function.with_attr("tirx.noalias", True)})

    def reference(self, inputs: Sequence[NDArray[Any]]) -> NDArray[Any]:
        return super().reference([in_tf32(one) for one in inputs])


# Divided by tiles and padded, the second operand by rows and by columns, a batch, an epilogue.
TENSOR_CASES = (
    Case("GMM", (64, 64, 64), dtype="float16"),
    Case("GMM", (50, 70, 40), batch=2, dtype="int8"),
    Case("GMM", (50, 70, 96), dtype="bfloat16"),
    Case("C2D", (14, 14, 16, 32, 3, 1, 1), dtype="float16"),
    Case("C2D", (8, 8, 32, 32, 3, 1, 1), batch=2, dtype="int8"),
    Case("ConvLayer", (14, 14, 8, 16, 3, 2, 1), dtype="float16"),
    Case("attention", (2, 32, 16), dtype="float16"),
    Tf32Case("GMM", (64, 64, 64)),
    Tf32Case("GMM", (50, 70, 44), batch=2),
    Tf32Case("C2D", (14, 14, 12, 32, 3, 2, 1)),
)
# Rows in registers: read in one step and in several, in two types.
ROW_CASES = (
    Case("softmax", (6, 128)),
    Case("layer_norm", (5, 768)),
    Case("NRM", (16, 32)),
    Case("softmax", (6, 1024)),
    Case("softmax", (6, 128), dtype="float16"),
    Case("layer_norm", (5, 768), dtype="float16"),
)
PADDED_CASES = (
    Case("C2D", (14, 14, 16, 32, 3, 1, 1)),
    Case("C2D", (14, 14, 16, 32, 3, 2, 1), dtype="float16"),
)
# The emulator takes a second for each: all 200 of an operator are too many for every run.
FEW, MANY = 2, int(os.environ.get("TUNEFARM_GPU_PROGRAMS", "3"))


# CUDA's compilers take the programs of several operators together.
OPERATORS = [tuple(SHAPES)[start::4] for start in range(4)]


def check(operators: Sequence[str], count: int) -> list[Failure]:
    """Try `count` programs of each operator, distributed over its cases."""
    drawn = []
    for operator in operators:
        rng = np.random.default_rng(0)
        choices = cases(operator)
        chosen = [choices[number % len(choices)] for number in range(count)]
        drawn += [(case, program) for case in chosen for program in draw(case, 1, rng)]
    results = [compiled(case, program) for case, program in drawn]
    refused = [one for one in results if isinstance(one, Failure)]
    return refused + failures([one for one in results if not isinstance(one, Failure)])


def test_random_programs_agree_with_the_reference() -> None:
    found = check(["GMM"], FEW)
    assert not found, "\n\n".join(map(str, found))


@pytest.mark.slow_lane(seconds=15)
@pytest.mark.timeout(900)
def test_tensor_cores_agree_with_the_reference() -> None:
    """CUDA's compilers take all cases of an element type together."""
    results = []
    for case in TENSOR_CASES:
        found = generate(read_dag(case.module()), GPU)
        (sketch,) = (sketch for sketch in found if sketch.of_kind(StageKind.TENSOR))
        population = sample(sketch, 64, np.random.default_rng(0))
        results += [compiled(case, population.program(row)) for row in (0, 20)]
    wrong = [one for one in results if isinstance(one, Failure)]
    wrong += failures([one for one in results if not isinstance(one, Failure)])
    assert not wrong, "\n\n".join(map(str, wrong))


@pytest.mark.parametrize("case", slow_lane_except(ROW_CASES, ROW_CASES[1]), ids=str)
def test_rows_in_registers_agree_with_the_reference(case: Case) -> None:
    rng = np.random.default_rng(0)
    found = generate(read_dag(case.module()), GPU)
    sketches = [one for one in found if any(stage.in_registers for stage in one.stages)]
    drawn = [sample(sketches[0], 64, rng).program(row) for row in (0, -1)]
    results = [compiled(case, program) for program in drawn]
    wrong = [one for one in results if isinstance(one, Failure)]
    wrong += failures([one for one in results if not isinstance(one, Failure)])
    assert not wrong, "\n\n".join(map(str, wrong))


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    slow_lane_except(
        [
            ImportedSoftmax("softmax", (6, 128)),
            GeluProduct("GMM", (32, 64, 32)),
            GeluProduct("GMM", (32, 64, 32), dtype="float16"),
        ],
        ImportedSoftmax("softmax", (6, 128)),
    ),
    ids=str,
)
def test_imported_chains_are_one_kernel(case: Case) -> None:
    kernels = {StageKind.ROWS, StageKind.THREADS, StageKind.TILED, StageKind.TENSOR}
    sketch = generate(read_dag(case.module()), GPU)[0]
    assert sum(stage.kind in kernels for stage in sketch.stages) == 1
    found = compiled(case, sample(sketch, 64, np.random.default_rng(0)).program(0))
    assert isinstance(found, Candidate), str(found)
    assert not failures([found])


@pytest.mark.slow
@pytest.mark.skipif(find_nvdisasm() is None, reason="nvidia-cuda-nvdisasm isn't installed")
def test_a_row_is_loaded_once_in_vectors_and_stays_in_registers(tmp_path: Path) -> None:
    case = Case("layer_norm", (5, 768))
    sketch = next(s for s in generate(read_dag(case.module()), GPU) if s.stages[-1].in_registers)
    found = compiled(case, choose(sketch, {"threads": 32, "rows": 1, "lanes": 4}))
    assert isinstance(found, Candidate), str(found)
    code, resources = compile_cubin(found.source, f"sm_{CAPABILITY}")
    assert resources is not None
    assert resources.spilled_bytes == 0
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(code)
    counts = instructions(cubin)
    vectors = 768 // 32 // 4
    assert counts["LDG"] == 3 * vectors, "the row, the scale and the shift"
    assert counts["STG"] == vectors
    assert counts["LDL"] + counts["STL"] == 0, "nothing lies in local memory"


@pytest.mark.slow
@pytest.mark.skipif(find_nvdisasm() is None, reason="nvidia-cuda-nvdisasm isn't installed")
@pytest.mark.parametrize("case", slow_lane_except(PADDED_CASES, PADDED_CASES[0]), ids=str)
def test_a_padded_operand_is_loaded_in_vectors(case: Case, tmp_path: Path) -> None:
    """All channels of a pixel are inside of the padding or outside."""
    sketch = next(one for one in generate(read_dag(case.module()), GPU) if one.of_kind(StageKind.TILED))
    population = sample(sketch, 256, np.random.default_rng(0))
    kinds = [(node, str(kind)) for node, kind in sketch.columns if str(kind).startswith("lanes ")]
    assert len(kinds) == 2
    row = int(np.argmax(np.min([population.column(node, kind) for node, kind in kinds], axis=0)))
    found = compiled(case, population.program(row))
    assert isinstance(found, Candidate), str(found)
    cubin = tmp_path / "kernel.cubin"
    cubin.write_bytes(compile_cubin(found.source, f"sm_{CAPABILITY}")[0])
    assert set(load_bits(cubin)) == {128}
    assert not failures([found])


@pytest.mark.slow_lane(seconds=9)
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("operators", OPERATORS, ids=lambda names: names[0])
def test_fewer_than_0_5_percent_of_gpu_programs_fail(operators: Sequence[str]) -> None:
    found = check(operators, MANY)
    assert len(found) <= MANY * len(operators) // 200, "\n\n".join(map(str, found))
