"""Run ONNX models in ONNX Runtime as they are written: without optimizations, on one thread."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

Array = NDArray[Any]


def load_session(
    proto: onnx.ModelProto, names: Sequence[str]
) -> Callable[[Mapping[str, Array]], list[Array]]:
    """Return a function that computes the values of these names.

    Raises ImportError if ONNX Runtime isn't installed. For a model that it can't load or run, ONNX Runtime
    raises its own errors, here and in the returned function.
    """
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    # A session's arena takes a megabyte, and lives as long as a result that lies in it.
    options.enable_cpu_mem_arena = False
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    wanted = list(names)

    def compute(inputs: Mapping[str, Array]) -> list[Array]:
        return [np.asarray(value) for value in session.run(wanted, dict(inputs))]

    return compute
