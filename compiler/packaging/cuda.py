"""Load TVM's CUDA runtime, which runs kernels and packs GPU code into libraries.

It needs NVIDIA's driver, and a runtime library that may come from the packages of the extra `cuda`. On
machines without the driver, such as builders, a stub library whose functions fail replaces it.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import platform
import tempfile
from pathlib import Path

import tvm
from tvm.libinfo import package_lib_paths

from compiler.codegen import nvcc
from compiler.packaging.linker import LinkerError, find_linker

DRIVER, RUNTIME, TVM_RUNTIME = "libcuda.so.1", "libcudart.so.13", "libtvm_runtime_cuda.so"
# The driver functions that TVM's runtime links to. Without a GPU it calls none of them.
_CALLED = (
    *("cuDeviceGetName", "cuFuncSetAttribute", "cuGetErrorName", "cuGetErrorString", "cuLaunchKernelEx"),
    *("cuModuleGetFunction", "cuModuleLoadData", "cuModuleUnload", "cuTensorMapEncodeTiled"),
)
_STUB_LIBRARY = 34  # the error code of NVIDIA's own stubs


class CudaError(RuntimeError):
    """TVM's CUDA runtime can't be loaded. The message says what to install."""


@functools.cache
def load_cuda() -> None:
    """Load TVM's CUDA runtime into this process, and make it compile with our nvcc. Raises CudaError."""
    nvcc.register()
    if tvm.get_global_func("ffi.Module.create.cuda", allow_missing=True) is not None:
        return
    try:
        ctypes.CDLL(RUNTIME)
    except OSError:
        ctypes.CDLL(str(_packaged_runtime()))
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        _load_stub()
    library = next(
        (path for path in (folder / TVM_RUNTIME for folder in package_lib_paths()) if path.exists()), None
    )
    if library is None:
        raise CudaError(f"this build of TVM has no {TVM_RUNTIME}: install the package apache-tvm")
    try:
        ctypes.CDLL(str(library))
    except OSError as error:
        raise CudaError(f"TVM's CUDA runtime can't be loaded: {error}") from error


def _packaged_runtime() -> Path:
    found = importlib.util.find_spec("nvidia")
    places = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    for path in (path for place in places for path in place.glob(f"cu*/lib/{RUNTIME}")):
        return path
    raise CudaError(f"there is no {RUNTIME}: install tunefarm's extra 'cuda'")


def _load_stub() -> None:
    """Load a stub library under the driver's name; its functions fail. Raises CudaError."""
    functions = "".join(f"int {name}() {{ return {_STUB_LIBRARY}; }}\n" for name in _CALLED)
    text = f'#ifdef __cplusplus\nextern "C" {{\n#endif\n{functions}#ifdef __cplusplus\n}}\n#endif\n'
    with tempfile.TemporaryDirectory(prefix="tunefarm-") as folder:
        source, library = Path(folder) / "stub.c", Path(folder) / DRIVER
        source.write_text(text)
        try:
            link = find_linker(f"{platform.machine()}-linux-gnu")
            link(str(library), [str(source)], [f"-Wl,-soname,{DRIVER}"])
        except LinkerError as error:
            raise CudaError(f"a stub for NVIDIA's driver can't be made: {error}") from error
        ctypes.CDLL(str(library))
