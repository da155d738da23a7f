"""The compiler leaves the loads of the calibration's kernels in their loops."""

from __future__ import annotations

import re
import subprocess
from functools import partial
from pathlib import Path

import pytest
import tvm

from compiler.codegen.nvcc import compile_cubin
from compiler.codegen.pipeline import PIPELINE
from compiler.measuring.gpu_calibration import (
    CACHE_THREADS,
    L2_BYTES,
    THREADS,
    UNROLLED,
    WARP,
    Stream,
    shared_loads,
    stream,
)
from compiler.measuring.microkernels import build_module
from tests.cuda_emulator.toolchain import find_nvdisasm
from tests.gpu_programs import TARGET

# The multiprocessors and the cache of an H200. A multiprocessor issues an instruction in each of its four
# parts in a cycle.
CORES, CACHE_BYTES, SCHEDULERS = 132, 60 << 20, 4
LOADS = {"cache": "LDG.E.128", "memory": "LDG.E.128", "shared": "LDS.128"}
_LINE = re.compile(r"^(?:\s+/\*[0-9a-f]+\*/\s+(.+?)\s*;|(\.L_x_\d+):)", re.MULTILINE)


def loops(text: str) -> list[list[str]]:
    """Return the instructions of each loop of a disassembled kernel, to its branch back."""
    found: list[list[str]] = []
    started: dict[str, int] = {}
    instructions: list[str] = []
    for instruction, label in _LINE.findall(text):
        if label:
            started[label] = len(instructions)
            continue
        instructions.append(instruction)
        branch = re.match(r"@!?U?P\d+ BRA(?:\.U)? `\((\.L_x_\d+)\)", instruction)
        if branch and branch[1] in started:
            found.append(instructions[started[branch[1]] :])
    return found


@pytest.mark.slow
@pytest.mark.skipif(find_nvdisasm() is None, reason="nvidia-cuda-nvdisasm isn't installed")
def test_every_step_loads_from_the_cache_memory_and_shared_memory(tmp_path: Path) -> None:
    blocks = 4 * CORES
    kernels = {
        "cache": partial(stream, Stream.of(CACHE_BYTES // 4, CORES, CACHE_THREADS)),
        "memory": partial(stream, Stream.of(8 * CACHE_BYTES, blocks, THREADS)),
        "shared": partial(shared_loads, blocks, THREADS),
    }
    functions = {
        name: build_module(body)["main"].with_attr("global_symbol", name) for name, body in kernels.items()
    }
    with TARGET:
        library = tvm.compile(tvm.IRModule(functions), target=TARGET, tir_pipeline=PIPELINE)
    cubin, _ = compile_cubin(library.mod.imports[0].inspect_source(), "sm_90")
    (tmp_path / "cubin").write_bytes(cubin)
    command = [str(find_nvdisasm()), "-c", str(tmp_path / "cubin")]
    disassembled = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    _, *sections = disassembled.split("//--------------------- .text.")
    texts = {section.partition("_kernel")[0]: section for section in sections}
    for name, load in LOADS.items():
        loop = max(loops(texts[name]), key=len)
        # The compiler may do several steps in one iteration.
        count = sum(load in instruction for instruction in loop)
        assert count >= UNROLLED, (name, loop)
        assert count % UNROLLED == 0, (name, loop)
        if name == "cache":
            bytes_per_cycle = SCHEDULERS * WARP * 16 * count / len(loop)
            assert bytes_per_cycle > 2 * L2_BYTES, "the issue of instructions isn't the limit"
