"""Build candidates: replay a trace on a workload and compile it for this machine or for another."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import tvm
from tvm import te
from tvm.s_tir import Schedule

from compiler.codegen.compilation import compile_scheduled
from compiler.codegen.nests import split_nests
from compiler.codegen.nvcc import last_resources
from compiler.constants.packing import PACK, PackedConstants, split_packing
from compiler.constants.permutations import permutations_of
from compiler.lowering.trace import apply_trace
from compiler.measuring.compiled_nests import CompiledNests, NestCompiler
from compiler.packaging.cuda import load_cuda
from compiler.packaging.library import KernelLibrary
from compiler.packaging.linker import find_linker, link_library
from compiler.packaging.llvm_check import check_llvm
from compiler.target import host_triple, parse_target
from compiler.workload import from_json
from core.measurement import Measurement, Outcome, Resources

# Errors are cut to the end of their message, where TVM names the cause.
ERROR_CHARS = 2000
REGISTER_BYTES = 4
# How TVM's message begins if LLVM's passes generate invalid code.
INVALID_CODE = "LLVM module verification failed"
LLVM_FAULT = (
    "LLVM 22 generates invalid code for this schedule (github.com/llvm/llvm-project/pull/189680): another "
    "schedule avoids that"
)
# An architecture that every supported CUDA version compiles for.
ANY_ARCH = "sm_80"


@dataclass(frozen=True)
class BuiltKernel:
    """A candidate compiled to machine code. `function` is the `main` of `library`. It is called with
    `arguments`.

    `packed_constants` describes the constants that the function `pack` packs ahead of time; None if it packs
    none. `resources` is the GPU compiler's report. `nests` are the loop nests that `function` calls if they
    were compiled one by one.
    """

    library: Any
    function: Any
    build_s: float
    packed_constants: PackedConstants | None = None
    pack: Any = None
    resources: Resources | None = None
    nests: CompiledNests | None = None

    def arguments(self, tensors: Sequence[Any]) -> list[Any]:
        """Return the arguments of `function` for a candidate's tensors."""
        return list(tensors) if self.nests is None else self.nests.arguments(tensors)


class LocalBuilder:
    """Builds candidates for one target. A failed build is returned as a measurement, never raised. Several
    threads may build at the same time.
    """

    def __init__(self, target: str) -> None:
        """Raises ValueError when TVM doesn't know the target, and CudaError."""
        self._target = parse_target(target)
        if self._target.kind.name == "cuda":
            load_cuda()
        self._workload = lru_cache(maxsize=64)(from_json)
        self._nests = NestCompiler(self._target)

    def build(self, module_json: str, trace: str) -> BuiltKernel | Measurement:
        """Replay a trace on a workload and compile it to run in this process.

        The code doesn't check its arguments: types and shapes have to be the workload's.
        """
        compile_candidate = self._build_gpu if self._target.kind.name == "cuda" else self._build_nests
        start = time.perf_counter()
        try:
            built = compile_candidate(apply_trace(self._workload(module_json), trace))
        except Exception as error:  # TVM's C++ code may raise any exception class
            return Measurement(Outcome.BUILD_ERROR, error=_described(error))
        if isinstance(built, Measurement):
            return built
        built = replace(built, build_s=time.perf_counter() - start)
        return _spilled(built.resources, built.build_s) or built

    def _build_nests(self, scheduled: tvm.IRModule) -> BuiltKernel:
        packed, pack = split_packing(scheduled), None
        if packed:
            packing = packed.module[PACK]
            pack = permutations_of(packing) or self._nests.compile([packing])[0]
        nests = split_nests((packed.module if packed else scheduled)["main"])
        compiled = self._nests.compile([nest.function for nest in nests.nests])
        calls = CompiledNests(nests, tuple(compiled))
        library = self._nests.call_list
        return BuiltKernel(library, library["main"], 0.0, packed, pack, nests=calls)

    def _build_gpu(self, scheduled: tvm.IRModule) -> BuiltKernel | Measurement:
        library, packed = compile_scheduled(scheduled, self._target, check_arguments=False)
        check_llvm(library.mod.inspect_source("ll"))
        # TVM emits machine code on the first look-up, so the build time includes it.
        function = library["main"]
        if not library.mod.imports:
            # Host code that reads device memory would crash this process.
            return Measurement(Outcome.BUILD_ERROR, error="nothing is bound to the GPU's threads")
        pack = library[PACK] if packed else None
        return BuiltKernel(library, function, 0.0, packed, pack, last_resources())

    def export(self, module_json: str, trace: str) -> KernelLibrary | Measurement:
        """Replay a trace on a workload and compile it to a library for the target's machine."""
        start = time.perf_counter()
        try:
            triple = host_triple(self._target)
            scheduled = apply_trace(self._workload(module_json), trace)
            library, packed = compile_scheduled(scheduled, self._target)
            with tempfile.TemporaryDirectory(prefix="tunefarm-") as folder:
                path = Path(folder) / "candidate.so"
                link_library(library, triple, find_linker(triple), path)
                data = path.read_bytes()
        except Exception as error:
            return Measurement(Outcome.BUILD_ERROR, error=_described(error))
        build_s, resources = time.perf_counter() - start, self._resources()
        return _spilled(resources, build_s) or KernelLibrary(data, packed, build_s, resources)

    def _resources(self) -> Resources | None:
        """Return the compiler's report on the kernels that this thread just built; None for CPUs."""
        return last_resources() if self._target.kind.name == "cuda" else None


def _described(error: Exception) -> str:
    """Return an error's message, cut to its end. Its last line is for users."""
    text = str(error).strip()
    if text.startswith(INVALID_CODE):
        text += f"\n{LLVM_FAULT}"
    return text[-ERROR_CHARS:]


def _spilled(resources: Resources | None, build_s: float) -> Measurement | None:
    """Return a failed measurement if threads spill more values to memory than they keep in registers; else
    None. Such a program waits for memory at every step: its tile is too large for any GPU.
    """
    if resources is None or resources.spilled_bytes <= REGISTER_BYTES * resources.registers:
        return None
    error = (
        f"a thread spills {resources.spilled_bytes} bytes to memory, more than its {resources.registers} "
        "registers hold: the program wasn't run"
    )
    return Measurement(Outcome.SPILLED, build_s=build_s, error=error, resources=resources)


def check_export(arch: str, on_gpu: bool = False) -> None:
    """Build and link a tiny kernel for an architecture of LLVM triples, with `on_gpu` also for its GPU.
    Raises LinkerError, CudaError or any exception of TVM's if that fails.
    """
    triple = f"{arch}-linux-gnu"
    host = {"kind": "llvm", "mtriple": triple}
    target, module = tvm.target.Target(host), doubling_kernel()
    if on_gpu:
        load_cuda()
        target, module = tvm.target.Target({"kind": "cuda", "arch": ANY_ARCH, "host": host}), bind(module)
    with target, tempfile.TemporaryDirectory(prefix="tunefarm-") as folder:
        compiled = tvm.compile(module, target=target)
        link_library(compiled, triple, find_linker(triple), Path(folder) / "doubling.so")


def bind(doubling: tvm.IRModule) -> tvm.IRModule:
    """Bind the tiny kernel's loop to a GPU's threads."""
    schedule = Schedule(doubling, debug_mask="none")
    (loop,) = schedule.get_loops(schedule.get_sblock("doubled"))
    grid, thread = schedule.split(loop, [None, 32])
    schedule.bind(grid, "blockIdx.x")
    schedule.bind(thread, "threadIdx.x")
    return schedule.mod


def doubling_kernel() -> tvm.IRModule:
    """Return a tiny kernel that tests a toolchain or a device: doubled[i] = source[i] * 2."""
    source = te.placeholder((64,), name="source")
    doubled = te.compute(source.shape, lambda i: source[i] * 2.0, name="doubled")
    return tvm.IRModule({"main": te.create_prim_func([source, doubled])})
