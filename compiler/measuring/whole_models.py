"""Time calls of a whole model: a compiled one, or the user's ONNX model in ONNX Runtime."""

from __future__ import annotations

import importlib
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np

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


def time_in_onnx_runtime(model: IO[bytes], shapes: Mapping[str, Shape], threads: int) -> Measurement:
    """Time a user's ONNX model on the CPU in ONNX Runtime, with all optimizations and the inputs of the
    compiled model.

    `model` is the opened .onnx file, or an archive of the file and its weights. `shapes` are the user's input
    shapes. If ONNX Runtime can't run the model, the result is a RUN_ERROR whose text begins with the cause.
    """
    try:
        runtime = importlib.import_module("onnxruntime")
        read = read_model(model, shapes)
        if not isinstance(read, OnnxModel):
            raise ValueError("it is no ONNX model")
        arrays = InputKind.ORDINARY.arrays([Parameter(spec.shape, spec.storage) for spec in read.inputs])
        feed = {
            spec.name: from_storage(array, spec.dtype)
            for spec, array in zip(read.inputs, arrays, strict=True)
        }
        cache = read.file.cache
        if cache is not None:  # with the new tokens, the cache fills the library's buffers
            feed[cache.position] = np.array([cache.capacity - cache.count])
            feed = inputs_of_file(cache, feed)
        del read
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 4
        with _onnx_path(model) as path:
            session = runtime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            return Measurement(Outcome.OK, time_calls(lambda: session.run(None, feed)))
    except Exception as error:  # ONNX Runtime has its own exception classes
        return Measurement(Outcome.RUN_ERROR, error=first_line(error))


@contextmanager
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
