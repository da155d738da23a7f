"""Run CUDA programs on the CPU: compile TVM's CUDA C with device.h, and launch it like TVM's host code."""

from __future__ import annotations

import atexit
import ctypes
import shutil
import struct
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import tirx
from tvm.s_tir.pipeline import default_s_tir_pipeline

from compiler.codegen.online_attention import write_attention
from compiler.codegen.tensor_maps import fetch_by_maps, pass_maps
from compiler.tir_nodes import find_all, op_name
from system.nvcc import find_nvcc
from tests.cuda_emulator.toolchain import merged
from tests.cuda_emulator.translate import compile_for_cpu, for_cpu, prepare

HOST_CONVENTION = 1
_TENSOR_MAP = 0x70616D726F736E65
STATUSES = {
    1: "too many threads",
    2: "some threads of a block wait at a barrier that others don't reach",
    3: "a row of a matrix isn't aligned to 16 bytes",
    4: "an instruction is unknown",
    5: "tensor cores read what no thread made visible to them by a fence",
    6: "a matrix lies outside of shared memory",
    7: "an operand changed while tensor cores read it",
    8: "a tile was read, or its block ended, before it had arrived",
    9: "threads wait for bytes that nobody fetches",
    10: "a swizzled tile isn't aligned to 1024 bytes",
    11: "a tensor map wasn't encoded",
}


class EmulationError(Exception):
    """The program can't be launched, or its threads diverge at a barrier."""


@dataclass(frozen=True)
class TensorMap:
    """The tensor map of a buffer: a matrix [images, height, width] in boxes. `sizes` are arguments of CUDA's
    driver, innermost first: 3 extents, 2 strides in bytes, 3 extents of a box.
    """

    buffer: str | int
    sizes: tuple[int, ...]
    item_bytes: int

    def encoded(self, address: int) -> bytes:
        """Encode it as tensor_map.h says."""
        return struct.pack("<11Q", _TENSOR_MAP, address, *self.sizes, self.item_bytes).ljust(128, b"\0")


@dataclass(frozen=True)
class Launch:
    """One kernel call. `buffers` are its arguments: names of workspaces, positions of parameters, or tensor
    maps.
    """

    kernel: str
    buffers: tuple[str | int | TensorMap, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]


@dataclass(frozen=True)
class HostCode:
    """The actions of TVM's host function: the launches in order, and the workspaces it allocates for them."""

    launches: tuple[Launch, ...]
    workspaces: Mapping[str, tuple[int, str]]


def host_code(module: tvm.IRModule, target: tvm.target.Target) -> HostCode:
    """Raises EmulationError if nothing is launched."""
    passes, *_ = default_s_tir_pipeline()
    lowered = pass_maps(passes(tirx.transform.BindTarget(target)(fetch_by_maps(write_attention(module)))))
    host = next(f for f in lowered.functions.values() if int(f.attrs["calling_conv"]) == HOST_CONVENTION)
    names: dict[Any, str | int | TensorMap] = {}
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
    every = find_all(host.body, tvm.ir.Call)
    for call in every:
        if op_name(call) == "tensormap_encode_tiled":
            buffer = names[_viewed(call.args[1])]
            assert not isinstance(buffer, TensorMap)
            item_bytes = tvm.DataType(call.attrs.descriptor_dtype).bits // 8
            names[call.args[0]] = TensorMap(buffer, tuple(int(size) for size in call.args[2:10]), item_bytes)
    calls = [call for call in every if op_name(call) == "call_ffi_kernel"]
    if not calls:
        raise EmulationError("the host code launches no kernel")
    return HostCode(tuple(_launch(call, names) for call in calls), workspaces)


def _viewed(data: Any) -> Any:
    """Return the buffer whose data pointer an expression is, if any."""
    return data.args[0] if isinstance(data, tvm.ir.Call) and len(data.args) else data


def _launch(call: Any, names: Mapping[Any, str | int | TensorMap]) -> Launch:
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
        for launch in self.host.launches:
            values = [_argument(one, everything) for one in launch.buffers]
            pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
            grid, block = ((ctypes.c_uint * 3)(*sizes) for sizes in (launch.grid, launch.block))
            emulate = getattr(self.library, f"emulate_program_{self.number}_{launch.kernel}")
            status = emulate(pointers, grid, block, seed)
            if status:
                raise EmulationError(f"{launch.kernel}: {STATUSES[status]}")


def _argument(one: str | int | TensorMap, space: Mapping[int | str, NDArray[Any]]) -> Any:
    """Return the value of a kernel's argument."""
    if isinstance(one, TensorMap):
        return ctypes.create_string_buffer(one.encoded(space[one.buffer].ctypes.data), 128)
    return ctypes.c_void_p(space[one].ctypes.data)


def compile_batch(programs: Sequence[tuple[str, HostCode]], folder: Path) -> list[Emulated]:
    """Compile pairs of (CUDA source, host code). Raises EmulationError if g++ fails."""
    loaded = load(for_cpu(merged([source for source, _ in programs])), folder / "batch.so")
    return [Emulated(loaded, number, host) for number, (_, host) in enumerate(programs)]


def load(source: str, library: Path) -> ctypes.CDLL:
    """Compile the result of `for_cpu` to a library, and load it. Raises EmulationError if g++ fails."""
    nvcc = find_nvcc()
    assert nvcc is not None, "the extra 'cuda' is installed"
    headers = nvcc.parents[1] / "include"
    if refusal := compile_for_cpu(source, headers, _device(headers), library):
        raise EmulationError(refusal)
    return ctypes.CDLL(str(library))


@cache
def _device(headers: Path) -> Path:
    """Return the folder of the compiled device, which this process's programs share."""
    folder = Path(tempfile.mkdtemp(prefix="tunefarm-emulator-"))
    atexit.register(shutil.rmtree, folder)
    prepare(folder, headers)
    return folder
