"""Compile a model that runs a few times only: compiling its kernels takes longer than running them."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import tvm
from tvm import relax
from tvm.s_tir import SBlockRealize
from tvm.tirx import For, IntImm, PrimFunc, SeqStmt, While

from compiler.codegen.pipeline import UNTUNED
from compiler.fallback import SLOW_ITERATIONS
from compiler.target import parse_target

# LLVM's optimization levels. Without optimization, a kernel compiles in half the time and runs 3 to 20 times
# longer.
QUICK_LEVEL, SLOW_LEVEL = 0, 2


def compile_model(fused: tvm.IRModule, target: str) -> relax.VirtualMachine:
    """Return a fused model, ready to run on this machine. All cores compile its kernels.

    Kernels compute the same at each level, because LLVM may not reorder sums. They don't check their
    arguments, which is a third of their code: relax knows all types and shapes. Without the machine's own
    instructions, especially conversions of float16, a call of ResNet-18 would take 40 s.
    """
    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as threads:
        compiled: list[Future[tvm.runtime.Module]] = []

        def without_kernels(module: tvm.IRModule) -> tvm.IRModule:
            module = relax.get_pipeline("default")(module)
            kernels = {var: one for var, one in module.functions_items() if isinstance(one, PrimFunc)}
            for part, level in _parts(kernels, cores):
                own = tvm.IRModule(part, attrs=module.attrs)
                leveled = tvm.target.Target({"opt-level": level, **parse_target(target).export()})
                compiled.append(threads.submit(_compile, own, leveled))
            rest = {var: one for var, one in module.functions_items() if var not in kernels}
            return tvm.IRModule(rest, attrs=module.attrs, global_infos=module.global_infos)

        executable = relax.build(fused, parse_target(target), relax_pipeline=without_kernels)
        for part in compiled:
            executable.mod.import_module(part.result())
    return relax.VirtualMachine(executable.mod, tvm.cpu())


def _parts(
    kernels: Mapping[tvm.ir.GlobalVar, PrimFunc], cores: int
) -> Sequence[tuple[Mapping[tvm.ir.GlobalVar, PrimFunc], int]]:
    """Divide kernels into parts of one level. There are as many parts of each level as cores."""
    levels = {var: optimization_level(kernel) for var, kernel in kernels.items()}
    found = []
    for level in (SLOW_LEVEL, QUICK_LEVEL):
        own = [var for var in kernels if levels[var] == level]
        found += [({var: kernels[var] for var in own[place::cores]}, level) for place in range(cores)]
    return [(part, level) for part, level in found if part]


def optimization_level(kernel: PrimFunc) -> int:
    """Return the level that takes the least time for compiling a kernel and a few calls together."""
    return QUICK_LEVEL if _iterations(kernel.body) < SLOW_ITERATIONS else SLOW_LEVEL


def _iterations(statement: Any) -> float:
    """Return how often the innermost statements run; inf if that isn't constant."""
    match statement:
        case For():
            extent = int(statement.extent) if isinstance(statement.extent, IntImm) else math.inf
            return extent * _iterations(statement.body)
        case While():
            return math.inf
        case SeqStmt():
            return sum(map(_iterations, statement.seq))
        case SBlockRealize():
            return _iterations(statement.block.body)
    branches = [getattr(statement, name, None) for name in ("body", "then_case", "else_case")]
    return max(1.0, sum(_iterations(branch) for branch in branches if branch is not None))


def _compile(part: tvm.IRModule, target: tvm.target.Target) -> tvm.runtime.Module:
    """Return kernels as machine code. LLVM makes it in this thread when the first kernel is asked for."""
    with tvm.transform.PassContext(config={"tirx.disable_assert": True}):
        module = tvm.tirx.build(part, target, UNTUNED)
    module.get_function(part.get_global_vars()[0].name_hint)
    return module
