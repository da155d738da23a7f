"""Capture calls in a CUDA graph, and time its launches with CUDA events."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tvm_ffi

from compiler.packaging.cuda import RUNTIME

# Constants of <driver_types.h>. In relaxed mode, a call may allocate memory during capture.
CAPTURE_RELAXED = 2
STREAM_NON_BLOCKING = 1


class CudaGraph:
    """The kernels that calls launched, in order. Launching the graph runs all of them.

    TVM submits kernels to the stream that `tvm_ffi` names, so any call of a TVM function can be captured.
    """

    def __init__(self, device: Any, calls: Callable[[], object]) -> None:
        """Capture the kernels that `calls` launches. Each kernel must have run before: its first call loads
        its code. Raises RuntimeError with CUDA's message."""
        self._runtime = ctypes.CDLL(RUNTIME)
        self._runtime.cudaGetErrorString.restype = ctypes.c_char_p
        self._stream, self._graph = ctypes.c_void_p(), ctypes.c_void_p()
        self._executable = ctypes.c_void_p()
        self._events = [ctypes.c_void_p(), ctypes.c_void_p()]
        device.sync()  # operands are copied on another stream
        self._check("cudaStreamCreateWithFlags", ctypes.byref(self._stream), STREAM_NON_BLOCKING)
        for event in self._events:
            self._check("cudaEventCreate", ctypes.byref(event))
        with self._captured(), tvm_ffi.use_raw_stream(device, self._stream.value or 0):
            calls()
        flags = ctypes.c_ulonglong(0)
        self._check("cudaGraphInstantiate", ctypes.byref(self._executable), self._graph, flags)

    def launch_s(self) -> float:
        """Launch the graph once; return the seconds from the start of its first kernel to the end of its last
        one.
        """
        start, end = self._events
        self._check("cudaEventRecord", start, self._stream)
        self._check("cudaGraphLaunch", self._executable, self._stream)
        self._check("cudaEventRecord", end, self._stream)
        self._check("cudaEventSynchronize", end)
        ms = ctypes.c_float()
        self._check("cudaEventElapsedTime", ctypes.byref(ms), start, end)
        return ms.value / 1e3

    def close(self) -> None:
        """Free the graph. CUDA reports an error after a failed launch, which is ignored."""
        for name, handle in (
            ("cudaGraphExecDestroy", self._executable),
            ("cudaGraphDestroy", self._graph),
            *(("cudaEventDestroy", event) for event in self._events),
            ("cudaStreamDestroy", self._stream),
        ):
            if handle:
                getattr(self._runtime, name)(handle)

    @contextmanager
    def _captured(self) -> Iterator[None]:
        self._check("cudaStreamBeginCapture", self._stream, CAPTURE_RELAXED)
        try:
            yield
        finally:
            error = self._runtime.cudaStreamEndCapture(self._stream, ctypes.byref(self._graph))
        self._raise_for("cudaStreamEndCapture", error)

    def _check(self, name: str, *arguments: Any) -> None:
        self._raise_for(name, getattr(self._runtime, name)(*arguments))

    def _raise_for(self, name: str, error: int) -> None:
        if error:
            said = (self._runtime.cudaGetErrorString(error) or b"").decode(errors="replace")
            raise RuntimeError(f"CUDA Runtime Error: {name}: {said} (error {error})")
