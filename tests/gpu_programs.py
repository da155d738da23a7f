"""Random GPU programs: compile them with CUDA's tools, and run them on a GPU or an emulator."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import tvm

from compiler.codegen.compilation import compile_scheduled
from compiler.lowering.trace import LoweringError, apply_trace, lower
from compiler.reading.subgraph import read_dag
from search.programs.annotate import sample
from search.programs.program import Program
from search.rules.space import generate
from tests.cuda_emulator.emulator import EmulationError, compile_batch, host_code
from tests.cuda_emulator.toolchain import compile_error, preamble
from tests.devices import GPU
from tests.suite import Case

CAPABILITY = 80
FACTS = {"kind": "cuda", "arch": "sm_80", "max_threads_per_block": 1024, "max_shared_memory_per_block": 49152}
TARGET = tvm.target.Target({**FACTS, "thread_warp_size": 32}, host={"kind": "llvm"})
# A compiler needs hardly more time for this many kernels than for one.
BATCH = 20
DRAWN_AT_ONCE = 64


@dataclass(frozen=True)
class Candidate:
    """A program, lowered and compiled to CUDA C."""

    case: Case
    program: Program
    module: tvm.IRModule
    library: Any
    source: str


@dataclass(frozen=True)
class Failure:
    case: Case
    program: Program
    cause: str

    def __str__(self) -> str:
        return f"{self.case}: {self.cause}\n{self.program}"


def draw(case: Case, count: int, rng: np.random.Generator) -> Iterator[Program]:
    """Draw random programs of random sketches."""
    sketches = generate(read_dag(case.module()), GPU)
    for _ in range(count):
        population = sample(sketches[rng.integers(len(sketches))], DRAWN_AT_ONCE, rng)
        yield population.program(int(rng.integers(len(population))))


def compiled(case: Case, program: Program) -> Candidate | Failure:
    """Lower a program, replay it from its trace and compile it to CUDA C."""
    try:
        module = apply_trace(case.module(), lower(case.module(), program, GPU))
        library, _ = compile_scheduled(module, TARGET)
        return Candidate(case, program, module, library, library.mod.imports[0].inspect_source())
    except Exception as error:  # TVM's C++ code may raise any exception class
        stage = "lowering" if isinstance(error, LoweringError) else "code generation"
        return Failure(case, program, f"{stage}: {str(error)[-500:]}")


def failures(candidates: Sequence[Candidate]) -> list[Failure]:
    """Return the programs that don't compile or that compute wrong results."""
    found: list[Failure] = []
    for batch in _batches(candidates):
        with tempfile.TemporaryDirectory() as folder:
            found += _on_gpu(batch) if tvm.cuda(0).exist else _emulated(batch, Path(folder))
    return found


def _batches(candidates: Sequence[Candidate]) -> Iterator[list[Candidate]]:
    by_preamble = sorted(candidates, key=lambda one: preamble(one.source))
    for _, group in groupby(by_preamble, key=lambda one: preamble(one.source)):
        members = list(group)
        for start in range(0, len(members), BATCH):
            yield members[start : start + BATCH]


def _on_gpu(batch: Sequence[Candidate]) -> Iterator[Failure]:
    device = tvm.cuda(0)
    for one in batch:
        placed = [tvm.runtime.tensor(argument, device) for argument in one.case.arguments()]
        one.library["main"](*placed)
        yield from _compared(one, [tensor.numpy() for tensor in placed])


def _emulated(batch: Sequence[Candidate], folder: Path) -> Iterator[Failure]:
    refusal = compile_error([one.source for one in batch], CAPABILITY)
    if refusal:
        yield Failure(batch[0].case, batch[0].program, f"one of {len(batch)}: {refusal}")
        return
    programs = compile_batch([(one.source, host_code(one.module, TARGET)) for one in batch], folder)
    for one, program in zip(batch, programs, strict=True):
        for order in (0, 1):
            arguments = one.case.arguments()
            try:
                program.run(arguments, order)
            except EmulationError as error:
                yield Failure(one.case, one.program, str(error))
                break
            wrong = list(_compared(one, arguments))
            yield from wrong
            if wrong:
                break


def _compared(one: Candidate, arguments: Sequence[Any]) -> Iterator[Failure]:
    *inputs, output = arguments
    difference = one.case.difference(output, one.case.reference(inputs))
    if difference:
        yield Failure(one.case, one.program, difference)
