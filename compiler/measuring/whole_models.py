"""Time calls of a whole model: a compiled one, or the user's ONNX model in ONNX Runtime."""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import tvm
from numpy.typing import NDArray

from compiler.importing.formats.onnx_model import OnnxModel
from compiler.importing.formats.reading import read_model
from compiler.importing.spec import Shape, first_line
from compiler.importing.values import from_storage
from compiler.measuring.random_inputs import InputKind, Parameter
from core.decoder_inputs import inputs_of_file
from core.measurement import Measurement, Outcome
from core.model_format import ModelFormat, recognise

# A model is called for WARM_UP_S to warm up, then timed for TURN_S. It gets at most MAX_TURN_REPEATS repeats.
# With more calls, a repeat is the median of several.
WARM_UP_S, TURN_S = 0.1, 0.3
MAX_TURN_REPEATS = 40
# A model that takes at least this long is called once, because cold caches and sleeping threads don't matter
# then.
LONG_S = 1.0
_STATM = Path("/proc/self/statm")


def time_calls(call: Callable[[], object]) -> tuple[float, ...]:
    """Return the wall-clock seconds of calls after a warm-up."""

    def timed() -> float:
        start = time.perf_counter()
        call()
        return time.perf_counter() - start

    warm_s = timed()
    if warm_s >= LONG_S:
        return (warm_s,)
    while warm_s < WARM_UP_S:
        warm_s += timed()
    secs = [timed(), timed()]
    spent_s = sum(secs)
    while spent_s < TURN_S:
        secs.append(timed())
        spent_s += secs[-1]
    return tuple(float(np.median(part)) for part in np.array_split(secs, min(len(secs), MAX_TURN_REPEATS)))


def call_for(call: Callable[[], object], seconds: float) -> tuple[float, float, int]:
    """Call for some seconds after a warm-up, at least once.

    Return the times of `time.monotonic` before the first and after the last call, and the number of calls.
    """
    warm_until_s = time.monotonic() + WARM_UP_S
    call()
    while time.monotonic() < warm_until_s:
        call()
    began_s, count = time.monotonic(), 0
    while not count or time.monotonic() < began_s + seconds:
        call()
        count += 1
    return began_s, time.monotonic(), count


def used_bytes(device: Any) -> int:
    """Return the memory that this process's live objects take: resident memory, or a GPU's memory in use.

    Memory that allocators keep in reserve is given back first. Other processes' memory counts on a GPU.
    """
    tvm.get_global_func("vm.builtin.memory_manager.clear")()
    if device.dlpack_device_type() != tvm.cpu().dlpack_device_type():
        return int(device.total_global_memory - device.available_global_memory)
    with contextlib.suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
    return int(_STATM.read_text().split()[1]) * resource.getpagesize()


class OnnxRuntimeTimer:
    """Times users' ONNX models on the CPU in ONNX Runtime, with all optimizations and the inputs of the
    compiled model. Keeps the inputs of the last model, because to read a large one takes longer than a turn.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._last: tuple[object, Mapping[str, NDArray[Any]]] | None = None

    def time(self, model: IO[bytes], shapes: Mapping[str, Shape]) -> Measurement:
        """Time a model for one turn.

        `model` is the opened .onnx file, or an archive of the file and its weights. `shapes` are the user's
        input shapes. If ONNX Runtime can't run the model, the result is a RUN_ERROR whose text begins with
        the cause.
        """
        try:
            runtime = importlib.import_module("onnxruntime")
            feed = self._inputs(model, shapes)
            options = runtime.SessionOptions()
            options.intra_op_num_threads, options.inter_op_num_threads = self._threads, 1
            options.log_severity_level = 4
            with _onnx_path(model) as path:
                session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
                return Measurement(Outcome.OK, time_calls(lambda: session.run(None, feed)))
        except Exception as error:  # ONNX Runtime has its own exception classes
            return Measurement(Outcome.RUN_ERROR, error=first_line(error))

    def _inputs(self, model: IO[bytes], shapes: Mapping[str, Shape]) -> Mapping[str, NDArray[Any]]:
        """Return the file's inputs. Raises ModelError, and ValueError if it is no ONNX model."""
        status = os.fstat(model.fileno())
        key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, dict(shapes))
        if self._last is None or self._last[0] != key:
            self._last = key, _read_inputs(model, shapes)
        return self._last[1]


def _read_inputs(model: IO[bytes], shapes: Mapping[str, Shape]) -> Mapping[str, NDArray[Any]]:
    read = read_model(model, shapes)
    if not isinstance(read, OnnxModel):
        raise ValueError("it is no ONNX model")
    arrays = InputKind.ORDINARY.arrays([Parameter(spec.shape, spec.storage) for spec in read.inputs])
    feed = {
        spec.name: from_storage(array, spec.dtype) for spec, array in zip(read.inputs, arrays, strict=True)
    }
    cache = read.file.cache
    if cache is None:
        return feed
    # With the new tokens, the cache fills the library's buffers.
    feed[cache.position] = np.array([cache.capacity - cache.count])
    return inputs_of_file(cache, feed)


@contextlib.contextmanager
def _onnx_path(model: IO[bytes]) -> Iterator[str]:
    """Yield the path of the .onnx file, unpacked if the model is an archive."""
    if recognise(model) is ModelFormat.ONNX:
        yield str(model.name)
        return
    with tempfile.TemporaryDirectory(prefix="tunefarm-onnx-") as folder:
        model.seek(0)
        with tarfile.open(fileobj=model, mode="r:") as archive:
            archive.extractall(folder, filter="data")
        yield str(next(Path(folder).rglob("*.onnx")))
