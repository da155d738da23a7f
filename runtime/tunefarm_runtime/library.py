"""One compiled library: loaded by TVM's runtime, which is 5 MB of shared libraries."""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import math
import os
import platform
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunefarm_runtime.errors import LoadError, RunError
from tunefarm_runtime.ffi import tvm_ffi
from tunefarm_runtime.manifest import Manifest, Tensor
from tunefarm_runtime.threads import Runner, choose_threads
from tunefarm_runtime.weights import MappedWeights

Array = NDArray[Any]
# The runtime of this release of TVM: libraries are compiled by it.
TVM_VERSION = "0.27.0.post1"
RUNTIME_LIBRARIES = ("libtvm_runtime.so", "libtvm_runtime_extra.so")
CUDA_RUNTIME = "libcudart.so.13"
CUDA_LIBRARY = "libtvm_runtime_cuda.so"
# Compiled code loads whole vectors: it faults on data that is less aligned.
ALIGNMENT = 64
# DLPack's numbers of devices, and TVM's number of the allocator that keeps freed memory.
CPU, CUDA, POOLED = 1, 2, 2


class Library:
    """A compiled model of one shape. Calls from several threads take turns."""

    def __init__(
        self, manifest: Manifest, threads: int | None = None, weights: MappedWeights | None = None
    ) -> None:
        """Load the library of a manifest, for a number of threads. `weights` are shared with other sizes.

        Raises LoadError, and RunError for a wrong number.
        """
        manifest.check_machine()
        self.manifest = manifest
        self._is_cuda = manifest.device == "cuda"
        self._lock = threading.Lock()
        load_runtime(self._is_cuda)
        self._runner = Runner(choose_threads(threads, manifest.threads))
        file, weights = manifest.folder / "model.so", weights or MappedWeights()
        if manifest.signed_digest is None:
            self._load(file)
            self._weights = weights.of(file)
        else:
            self._weights = self._load_signed(file, manifest.signed_digest, weights)
        self._device = tvm_ffi.device("cuda" if self._is_cuda else "cpu", 0)
        self._inputs = [_Input(spec, self._device) for spec in manifest.inputs]

    def _load(self, file: Path) -> None:
        """Load a library. Raises LoadError."""
        devices = (CUDA, 0, POOLED, CPU, 0, POOLED) if self._is_cuda else (CPU, 0, POOLED)
        try:
            machine = tvm_ffi.load_module(str(file))["vm_load_executable"]()
            machine["vm_initialization"](*devices)
            self._main: Callable[..., Any] = machine["main"]
        except Exception as error:  # TVM's C++ code may raise any exception class
            reason = str(error).strip().splitlines()[-1]
            raise LoadError(f"{self.manifest.folder / file.name} can't be loaded: {reason}") from error

    def _load_signed(self, file: Path, signed: str, weights: MappedWeights) -> list[Any]:
        """Load a copy of a signed library, and return copies of its weights.

        The file may be changed after it was checked, so only the copies are checked and used. Raises
        LoadError.
        """
        try:
            # The linker takes a path that it has seen before for the same library, so the folder is new.
            with (
                tempfile.TemporaryDirectory(prefix="tunefarm-") as folder,
                os.fdopen(os.memfd_create(file.name), "wb") as copy,
            ):
                copied = weights.copied(file, signed, copy)
                link = Path(folder, file.name)
                link.symlink_to(f"/proc/self/fd/{copy.fileno()}")
                self._load(link)
                return copied
        except OSError as error:
            raise LoadError(
                f"{file} can't be copied into memory ({error.strerror or error}): free memory, and set "
                "TMPDIR to a folder that can be written"
            ) from error

    @property
    def threads(self) -> int:
        """The number of threads that calls compute with."""
        return self._runner.threads

    def __call__(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the model. Inputs have the right shapes and element types.

        Inputs are NumPy arrays or have DLPack on the model's device. Outputs of a CPU model are NumPy arrays;
        outputs of a GPU model have DLPack.
        """
        outputs = self.run(inputs)
        return outputs if self._is_cuda else list(map(to_numpy, outputs, self.manifest.outputs))

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the model as `__call__` does; all outputs have DLPack."""
        with self._lock:
            tensors = [each.tensor(value) for each, value in zip(self._inputs, inputs, strict=True)]
            result = self._runner(self._main, *tensors, *self._weights)
            # TVM returns a single output directly, and several outputs as an array.
            outputs = [result] if len(self.manifest.outputs) == 1 else list(result)
            given = [tensor.data_ptr() for tensor in tensors]
            for index, output in enumerate(outputs):
                if output.data_ptr() in given:  # the model returns an input unchanged
                    outputs[index] = _copy_of(output, self._device)
        return outputs

    def synchronize(self) -> None:
        """Wait until the GPU has finished all its work."""
        if self._is_cuda:
            tvm_ffi.get_global_func("runtime.Device_StreamSync")(self._device, 0)


class _Input:
    """One input of a library. Memory that is aligned is shared with TVM, and other memory is copied once."""

    def __init__(self, spec: Tensor, device: Any) -> None:
        self._spec = spec
        self._device = device
        self._is_cuda = device.type == "cuda"
        self._place = (CUDA if self._is_cuda else CPU, 0)
        self._shape, self._dtype = tvm_ffi.Shape(spec.shape), tvm_ffi.dtype(spec.storage)
        self._is_narrow = spec.storage != spec.dtype
        # Memory of TVM's, and the array that writes into it.
        self._stage: tuple[Any, Array] | None = None

    def tensor(self, value: Any) -> Any:
        """Return an input as TVM takes it. Raises RunError for one on another device."""
        if self._is_narrow:
            return self._copied(np.asarray(value))
        if isinstance(value, np.ndarray):
            if self._is_cuda:
                return self._copied(value)
            try:
                tensor = tvm_ffi.from_dlpack(value)
            except Exception:  # not writable, or of a type that DLPack doesn't have
                return self._copied(value)
            return tensor if _is_aligned(tensor) and tensor.is_contiguous() else self._copied(value)
        try:
            place = tuple(map(int, value.__dlpack_device__()))
        except AttributeError:
            return self._copied(np.asarray(value))
        if place == (CPU, 0) and self._is_cuda:
            return self._copied(np.from_dlpack(value))
        if place != self._place:
            raise RunError(
                f"input {self._spec.name} is on device {place}, and the model runs on {self._place}: "
                "copy it there"
            )
        return self._shared(value)

    def _shared(self, value: Any) -> Any:
        """Return another library's array as TVM takes it. Raises RunError."""
        reason = ""
        try:
            tensor = tvm_ffi.from_dlpack(value)
        except Exception as error:  # tvm_ffi raises several classes
            reason = f" ({error})"
        else:
            if tensor.is_contiguous():
                return tensor if _is_aligned(tensor) else _copy_of(tensor, self._device)
        if self._is_cuda or self._spec.numpy_dtype.isbuiltin != 1:
            raise RunError(
                f"input {self._spec.name} can't be shared with the model: make it contiguous{reason}"
            )
        return self._copied(np.from_dlpack(value))

    def _copied(self, value: Array) -> Any:
        if self._is_cuda:
            array = np.ascontiguousarray(value)
            tensor = _allocate(self._shape, self._dtype, self._device)
            write = tvm_ffi.get_global_func("runtime.TVMTensorCopyFromBytes")
            write(tensor, array.ctypes.data_as(ctypes.c_void_p), array.nbytes)
            return tensor
        if self._stage is None:
            self._stage = allocate(self._spec)
        tensor, array = self._stage
        np.copyto(array, value)
        return tensor


def _is_aligned(tensor: Any) -> bool:
    """Check the input here: if TVM rejects it, its error reads the symbols of all libraries for 200 ms."""
    return bool(tensor.data_ptr() % ALIGNMENT == 0)


def allocate(spec: Tensor) -> tuple[Any, Array]:
    """Allocate a TVM tensor on the CPU for an input. Return it, and an array that shares its memory."""
    tensor = _allocate(tvm_ffi.Shape(spec.shape), tvm_ffi.dtype(spec.storage), tvm_ffi.device("cpu", 0))
    kind, count = spec.numpy_dtype, math.prod(spec.shape)
    memory = (ctypes.c_char * (kind.itemsize * count)).from_address(tensor.data_ptr())
    return tensor, np.ndarray(spec.shape, kind, memoryview(memory))


def _allocate(shape: Any, dtype: Any, device: Any) -> Any:
    return tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")(shape, dtype, device, None)


def _copy_of(tensor: Any, device: Any) -> Any:
    """Return a copy of a contiguous tensor, in memory that is aligned."""
    copy = _allocate(tensor.shape, tensor.dtype, device)
    tvm_ffi.get_global_func("runtime.TVMTensorCopyFromTo")(tensor, copy)
    return copy


def to_numpy(value: Any, spec: Tensor) -> Array:
    """Return an output as an array on the CPU. Its memory is shared if it is there and NumPy has the type."""
    if isinstance(value, np.ndarray):
        return value
    if value.device.type == "cpu" and spec.numpy_dtype.isbuiltin == 1:
        return np.from_dlpack(value)
    array = np.empty(tuple(value.shape), spec.numpy_dtype)
    read = tvm_ffi.get_global_func("runtime.TVMTensorCopyToBytes")
    read(value, array.ctypes.data_as(ctypes.c_void_p), array.nbytes)
    return array


@cache
def load_runtime(cuda: bool) -> None:
    """Load TVM's runtime into this process, once. Raises LoadError where it is missing."""
    if "tvm" in sys.modules:
        return  # the process has loaded its own TVM
    folder = library_folder()
    names = [*RUNTIME_LIBRARIES, *((CUDA_LIBRARY,) if cuda else ())]
    try:
        if cuda:
            _load_cuda_runtime()
        for name in names:
            ctypes.CDLL(str(folder / name), ctypes.RTLD_GLOBAL)
    except OSError as error:
        package = "tunefarm-runtime[cuda]" if cuda else "tunefarm-runtime"
        advice = f"install {package} again" + (", and NVIDIA's driver" if cuda else "")
        raise LoadError(f"TVM's runtime can't be loaded: {error}: {advice}") from error


def _load_cuda_runtime() -> None:
    """Load NVIDIA's runtime library: the one in use or the system's, else a package's. Raises OSError."""
    try:
        ctypes.CDLL(CUDA_RUNTIME)
    except OSError:
        found = importlib.util.find_spec("nvidia")
        places = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
        packaged = [path for place in places for path in place.glob(f"cu*/lib/{CUDA_RUNTIME}")]
        if not packaged:
            raise
        ctypes.CDLL(str(packaged[0]))


def library_folder() -> Path:
    """Return the folder of TVM's runtime libraries for this machine. Raises LoadError where there is none.

    An installed TVM of the same release comes first: if the process imports it later, both share one runtime.
    """
    try:
        spec = importlib.util.find_spec("tvm")
        if spec is not None and importlib.metadata.version("apache-tvm") == TVM_VERSION:
            for location in spec.submodule_search_locations or ():
                if (Path(location) / "lib" / RUNTIME_LIBRARIES[0]).exists():
                    return Path(location) / "lib"
    except importlib.metadata.PackageNotFoundError:
        pass
    own = Path(__file__).parent / "lib" / platform.machine()
    if not (own / RUNTIME_LIBRARIES[0]).exists():
        raise LoadError(
            f"tunefarm-runtime was built without TVM's runtime for {platform.machine()}: "
            "install a released wheel, or run `make runtime`"
        )
    return own
