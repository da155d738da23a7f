"""Rows that are rounded to int8 are multiplied by packed weights as integers."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from compiler.codegen.compilation import compile_functions
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
from core.device import Device
from search.dag import Buffer
from search.programs.annotate import sample
from search.programs.program import Program
from search.rules.space import generate
from tests import arm_programs
from tests.marks import slow_lane_except
from tests.onnx_models import in_bits

DEVICE = detect_device()
TARGET = '{"kind":"llvm","num-cores":1}'


def _device(mcpu: str, triple: str, vector_bytes: int, *features: str) -> Device:
    target = {"kind": "llvm", "mtriple": triple, "mcpu": mcpu}
    return replace(
        DEVICE,
        triple=triple,
        mcpu=mcpu,
        features=features,
        vector_bytes=vector_bytes,
        target=json.dumps(target),
    )


# The devices whose programs run here, with the instructions of 4-bit and of 8-bit codes.
HERE = {
    "vnni": (DEVICE, "vpdpbusd", "vpdpbusd", "avx512_vnni"),
    "avx2": (
        _device("haswell", "x86_64-linux-gnu", 32, "avx", "avx2", "fma"),
        "vpmaddubsw",
        "vpmaddwd",
        "avx2",
    ),
}
ALDER_LAKE = _device("alderlake", "x86_64-linux-gnu", 32, "avx", "avx2", "avx_vnni", "fma")
CORTEX_A76 = _device("cortex-a76", "aarch64-linux-gnu", 16, "asimd", "asimddp")
BY_DEVICE = pytest.mark.parametrize(
    "here",
    [
        pytest.param(one, marks=pytest.mark.skipif(one[3] not in DEVICE.features, reason=f"no {one[3]} here"))
        for one in HERE.values()
    ],
    ids=list(HERE),
)
# The arguments of in_bits.
CASES = [
    (4, 64, 64, 32, 5),
    (4, 64, 40, 16, 3, "packed"),
    (4, 256, 16, 128, 1, "packed"),
    (4, 512, 24, 256, 2),
    (8, 64, 48, 32, 3),
    (8, 256, 40, 128, 1, "packed"),
]


def _workload(case: tuple[Any, ...], device: Device) -> tvm.IRModule:
    model = import_file(read_file(in_bits(*case).SerializeToString(), {}))
    (task,) = (one for one in extract_tasks(fuse(model, device.target)) if "rounded_matmul" in one.name)
    return from_json(task.module_json)


@BY_DEVICE
@pytest.mark.parametrize("case", CASES)
def test_the_tuned_form_agrees_with_onnx_runtime(
    case: tuple[Any, ...], here: tuple[Device, str, str, str]
) -> None:
    file = read_file(in_bits(*case).SerializeToString(), {})
    imported = Imported(import_file(file), TARGET, here[0].target)
    for inputs in input_sets(file):
        (wanted,) = Reference(file.proto, file.output_names).compute(inputs).values()
        (found,) = imported.compute(inputs).values()
        np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    (name,) = inputs
    inputs[name][0, 3] = np.nan
    (found,) = imported.compute(inputs).values()
    assert np.isnan(found[0]).all()
    assert np.isfinite(found[1:]).all()


@BY_DEVICE
@pytest.mark.parametrize("case", slow_lane_except(CASES, CASES[1], CASES[3], CASES[4], seconds=4))
def test_programs_are_right_and_use_the_instruction(
    case: tuple[Any, ...], here: tuple[Device, str, str, str]
) -> None:
    """The first row and the first columns have the greatest magnitudes."""
    device, *instructions = here
    module = _workload(case, device)
    *operands, result = read_dag(module).buffers
    random = np.random.default_rng(0)
    inputs = [_drawn(operand, random) for operand in operands]
    _, _, rows, codes, zeros = inputs
    rows[0], codes[..., :8] = 127, 255
    zeros[:, :8] = 0
    expected = _run(tvm.compile(module, target="llvm"), inputs, result)
    allowed = Rounding.of(module["main"]).bounds(expected, None)
    programs = _programs(module, device)
    assert len(programs) == 3
    for program in programs:
        library = _compiled(module, program, device)
        assert instructions[case[0] > 4] in library.mod.inspect_source("asm"), str(program)
        assert (np.abs(_run(library, inputs, result) - expected) <= allowed).all(), str(program)


@pytest.mark.parametrize("bits", [4, 8])
def test_avx_vnni_is_used(bits: int) -> None:
    module = _workload((bits, 64, 40, 32, 3), ALDER_LAKE)
    program = _programs(module, ALDER_LAKE)[0]
    source = _compiled(module, program, ALDER_LAKE).mod.inspect_source("asm")
    assert re.search(r"{vex}\s+vpdpbusd", source)


@pytest.mark.skipif(arm_programs.obstacle() is not None, reason=f"{arm_programs.obstacle()}")
@pytest.mark.parametrize("bits", [4, 8])
def test_dot_products_of_arm_are_right(bits: int, tmp_path: Path) -> None:
    module = _workload((bits, 64, 40, 32, 3, "packed"), CORTEX_A76)
    *operands, result = read_dag(module).buffers
    random = np.random.default_rng(0)
    inputs = [_drawn(operand, random) for operand in operands]
    expected = _run(tvm.compile(module, target="llvm"), inputs, result)
    allowed = Rounding.of(module["main"]).bounds(expected, None)
    library = _compiled(module, _programs(module, CORTEX_A76)[0], CORTEX_A76)
    assert re.search(r"\bsdot\b", library.mod.inspect_source("asm"))
    found = arm_programs.run(library, [*inputs, np.full(result.shape, 113, result.dtype)], tmp_path)
    assert (np.abs(found - expected) <= allowed).all()


def _programs(module: tvm.IRModule, device: Device) -> list[Program]:
    """Return a program of each sketch with an intrinsic."""
    random = np.random.default_rng(1)
    sketches = [one for one in generate(read_dag(module), device) if any(s.intrinsic for s in one.stages)]
    return [sample(sketch, 32, random).program(0) for sketch in sketches]


def _compiled(module: tvm.IRModule, program: Program, device: Device) -> Any:
    scheduled = apply_trace(module, lower(module, program, device))
    return compile_functions(scheduled, parse_target(device.target), check_arguments=True)


def _drawn(buffer: Buffer, random: np.random.Generator) -> Any:
    if buffer.dtype == "float32":
        return random.standard_normal(buffer.shape, np.float32)
    return random.integers(*((-127, 128) if buffer.dtype == "int8" else (0, 256)), buffer.shape, buffer.dtype)


def _run(library: Any, inputs: list[Any], result: Buffer) -> Any:
    found = tvm.runtime.tensor(np.full(result.shape, 113, result.dtype))
    library["main"](*map(tvm.runtime.tensor, inputs), found)
    return found.numpy()
