"""CUDA programs run on the CPU: TVM's CUDA C compiled by g++ under device.h, launched as by TVM's host code.

It needs g++ and CUDA's headers, no GPU.
"""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import tirx
from tvm.s_tir.pipeline import default_s_tir_pipeline

from compiler.reading.indices import find_all
from tests.cuda_emulator.toolchain import merged

HERE = Path(__file__).parent
HOST_CONVENTION = 1
STATUSES = {1: "too many threads", 2: "some threads of a block wait at a barrier that others don't reach"}


class EmulationError(Exception):
    """The program can't be launched, or its threads part ways at a barrier."""


@dataclass(frozen=True)
class Launch:
    """One kernel call; `buffers` are its arguments: names of workspaces, positions of parameters."""

    kernel: str
    buffers: tuple[str | int, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]


@dataclass(frozen=True)
class HostCode:
    """What TVM's host function does: the launches in order, and the workspaces it allocates for them."""

    launches: tuple[Launch, ...]
    workspaces: Mapping[str, tuple[int, str]]


def host_code(module: tvm.IRModule, target: tvm.target.Target) -> HostCode:
    """Raises EmulationError when nothing is launched."""
    passes, *_ = default_s_tir_pipeline()
    lowered = passes(tirx.transform.BindTarget(target)(module))
    host = next(f for f in lowered.functions.values() if int(f.attrs["calling_conv"]) == HOST_CONVENTION)
    names: dict[Any, str | int] = {}
    parameters = 0
    workspaces: dict[str, tuple[int, str]] = {}
    for found in find_all(host.body, tirx.AllocBuffer, tirx.DeclBuffer):
        buffer = found.buffer
        if isinstance(found, tirx.AllocBuffer):
            name = names[buffer] = f"workspace {len(workspaces)}"
            elements = int(np.prod([int(extent) for extent in buffer.ty.shape]))
            workspaces[name] = elements, str(buffer.ty.dtype)
        elif (viewed := _viewed(found.data)) in names:
            names[buffer] = names[viewed]
        else:
            # The parameters are declared first, in their order.
            names[buffer] = parameters
            parameters += 1
    calls = [call for call in find_all(host.body, tvm.ir.Call) if "call_ffi_kernel" in str(call.op)]
    if not calls:
        raise EmulationError("the host code launches no kernel")
    return HostCode(tuple(_launch(call, names) for call in calls), workspaces)


def _viewed(data: Any) -> Any:
    """The buffer whose data an expression is, if it is that of a buffer."""
    return data.args[0] if isinstance(data, tvm.ir.Call) and len(data.args) else data


def _launch(call: Any, names: Mapping[Any, str | int]) -> Launch:
    parameters = [str(name) for name in call.attrs.launch_params]
    kernel, *arguments = call.args
    buffers, extents = arguments[: -len(parameters)], arguments[-len(parameters) :]
    sizes = {name: int(extent) for name, extent in zip(parameters, extents, strict=True)}

    def three(kind: str) -> tuple[int, int, int]:
        return sizes.get(f"{kind}.x", 1), sizes.get(f"{kind}.y", 1), sizes.get(f"{kind}.z", 1)

    called = tuple(names[_viewed(buffer)] for buffer in buffers)
    return Launch(str(kernel.value), called, three("blockIdx"), three("threadIdx"))


@dataclass(frozen=True)
class Emulated:
    """One program of a compiled batch."""

    library: ctypes.CDLL
    number: int
    host: HostCode

    def run(self, arguments: Sequence[NDArray[Any]], seed: int = 0) -> None:
        """Runs it on one array for each parameter; results are written into them. With a seed, threads run in
        another order. Raises EmulationError."""
        types = {"bfloat16": "uint16"}
        space: dict[int | str, NDArray[Any]] = {
            name: np.zeros(size, dtype=types.get(dtype, dtype))
            for name, (size, dtype) in self.host.workspaces.items()
        }
        everything: dict[int | str, NDArray[Any]] = {**dict(enumerate(arguments)), **space}
        for position, launch in enumerate(self.host.launches):
            arrays = [everything[name] for name in launch.buffers]
            pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
            status = getattr(self.library, f"run_{self.number}_{position}")(pointers, seed)
            if status:
                raise EmulationError(f"{launch.kernel}: {STATUSES[status]}")


def compile_batch(programs: Sequence[tuple[str, HostCode]], folder: Path) -> list[Emulated]:
    """Programs as (CUDA source, host code). Raises EmulationError when g++ refuses one."""
    text = "\n".join(['#include "device.h"', _for_cpu(merged([source for source, _ in programs]))])
    entries = [
        _entry(text, number, position, launch)
        for number, (_, host) in enumerate(programs)
        for position, launch in enumerate(host.launches)
    ]
    source, library = folder / "batch.cc", folder / "batch.so"
    source.write_text("\n".join([text, *entries]))
    flags = ["-O1", "-w", "-shared", "-fPIC", "-std=c++17", f"-I{HERE}", f"-I{headers()}"]
    done = subprocess.run(["g++", *flags, str(source), "-o", str(library)], capture_output=True, text=True)
    if done.returncode:
        raise EmulationError("\n".join(line for line in done.stderr.splitlines() if "error" in line)[:2000])
    loaded = ctypes.CDLL(str(library))
    return [Emulated(loaded, number, host) for number, (_, host) in enumerate(programs)]


def headers() -> Path | None:
    """CUDA's include folder, where nvcc is installed with it."""
    compiler = shutil.which("nvcc")
    places = [Path(compiler).resolve().parents[1] / "include"] if compiler else []
    places += sorted(Path("/usr/local").glob("cuda*/include"))
    return next((place for place in places if (place / "cuda_runtime.h").exists()), None)


def _for_cpu(source: str) -> str:
    source = re.sub(r"#include <(cuda|mma)\.h>", "", source)
    # Fragments are classes, which g++ aligns by itself.
    source = re.sub(r"alignas\(64\) (?=nvcuda)", "", source)
    source = source.replace("alignas(64)", "__attribute__((aligned(64)))")
    return source.replace("half_t", "half")


def _entry(source: str, number: int, position: int, launch: Launch) -> str:
    """A C function that launches one kernel with an array of pointers."""
    kernel = f"program_{number}_{launch.kernel}"
    values = ", ".join(f"({type_})arguments[{i}]" for i, type_ in enumerate(_parameter_types(source, kernel)))
    name = f"{number}_{position}"
    return "\n".join(
        [
            f"static void** arguments_{name};",
            f"static void body_{name}() {{ void** arguments = arguments_{name}; {kernel}({values}); }}",
            f'extern "C" int run_{name}(void** arguments, int seed) {{',
            f"  arguments_{name} = arguments;",
            f"  return emulator::launch(dim3{launch.grid}, dim3{launch.block}, body_{name}, seed);",
            "}",
        ]
    )


def _parameter_types(source: str, kernel: str) -> Iterator[str]:
    found = re.search(rf"__global__ void (?:__launch_bounds__\(\d+\) )?{kernel}\((.*?)\)", source)
    if found is None:
        raise EmulationError(f"the source has no kernel {kernel}")
    for parameter in found[1].split(", "):
        yield re.sub(r"\s*__restrict__ \w+$", "", parameter)
