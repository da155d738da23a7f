"""Rows that are rounded to int8 are multiplied by packed weights as integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm

from compiler.codegen.pipeline import PIPELINE
from compiler.importing.model import extract_tasks, fuse, import_file
from compiler.importing.onnx_file import read_file
from compiler.lowering.trace import apply_trace, lower
from compiler.measuring.rounding import Rounding
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device, parse_target
from compiler.verifying.imported import Imported
from compiler.verifying.inputs import input_sets
from compiler.verifying.reference import Reference
from compiler.workload import from_json
from search.dag import Buffer
from search.programs.annotate import sample
from search.rules.space import generate
from tests.onnx_models import in_bits

DEVICE = detect_device()
TARGET = '{"kind":"llvm","num-cores":1}'
pytestmark = pytest.mark.skipif(
    "avx512_vnni" not in DEVICE.features, reason="this CPU has no such instruction"
)
# The arguments of in_bits.
CASES = [
    (4, 64, 64, 32, 5),
    (4, 64, 40, 16, 3, "packed"),
    (4, 256, 16, 128, 1, "packed"),
    (4, 512, 24, 256, 2),
]


def _workload(case: tuple[Any, ...]) -> tvm.IRModule:
    model = import_file(read_file(in_bits(*case).SerializeToString(), {}))
    (task,) = (one for one in extract_tasks(fuse(model, DEVICE.target)) if "rounded_matmul" in one.name)
    return from_json(task.module_json)


@pytest.mark.parametrize("case", CASES)
def test_the_tuned_form_agrees_with_onnx_runtime(case: tuple[Any, ...]) -> None:
    file = read_file(in_bits(*case).SerializeToString(), {})
    imported = Imported(import_file(file), TARGET, DEVICE.target)
    for inputs in input_sets(file):
        (wanted,) = Reference(file.proto, file.output_names).compute(inputs).values()
        (found,) = imported.compute(inputs).values()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    (name,) = inputs
    inputs[name][0, 3] = np.nan
    (found,) = imported.compute(inputs).values()
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1:]).all()


@pytest.mark.parametrize("case", CASES)
def test_programs_are_right_and_use_the_instruction(case: tuple[Any, ...]) -> None:
    module = _workload(case)
    *operands, result = read_dag(module).buffers
    random = np.random.default_rng(0)
    inputs = [_drawn(operand, random) for operand in operands]
    expected = _run(tvm.compile(module, target="llvm"), inputs, result)
    allowed = Rounding.of(module["main"]).bounds(expected, None)
    sketches = [one for one in generate(read_dag(module), DEVICE) if any(s.intrinsic for s in one.stages)]
    assert len(sketches) == 3
    for sketch in sketches:
        program = sample(sketch, 32, random).program(0)
        scheduled = apply_trace(module, lower(module, program, DEVICE))
        library = tvm.compile(scheduled, target=parse_target(DEVICE.target), tir_pipeline=PIPELINE)
        assert "vpdpbusd" in library.mod.inspect_source("asm"), str(program)
        assert (np.abs(_run(library, inputs, result) - expected) <= allowed).all(), str(program)


def _drawn(buffer: Buffer, random: np.random.Generator) -> Any:
    if buffer.dtype == "float32":
        return random.standard_normal(buffer.shape, np.float32)
    return random.integers(*((-127, 128) if buffer.dtype == "int8" else (0, 256)), buffer.shape, buffer.dtype)


def _run(library: Any, inputs: list[Any], result: Buffer) -> Any:
    found = tvm.runtime.tensor(np.full(result.shape, 113, result.dtype))
    library["main"](*map(tvm.runtime.tensor, inputs), found)
    return found.numpy()
