"""Compute what a model should, by ONNX Runtime where it is installed, else by ONNX's reference evaluator."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from compiler.importing.spec import NoReference, first_line

Array = NDArray[Any]
# Inputs -> the values that were asked for, by name.
Compute = Callable[[Mapping[str, Array]], dict[str, Array]]


class Reference:
    """Computes the values of these names as ONNX defines them."""

    def __init__(self, proto: onnx.ModelProto, names: Sequence[str]) -> None:
        self._proto = onnx.ModelProto()
        self._proto.CopyFrom(proto)
        declared = {output.name for output in proto.graph.output}
        self._proto.graph.output.extend(
            onnx.ValueInfoProto(name=name) for name in names if name not in declared
        )
        self._names = list(names)
        self._makers = [self._onnxruntime, self._evaluator]
        self._compute: Compute | None = None

    def compute(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Raises NoReference."""
        problems = []
        while self._makers:
            try:
                self._compute = self._compute or self._makers[0]()
                return self._compute(inputs)
            except Exception as error:  # each has errors of its own
                problems.append(first_line(error))
                del self._makers[0]
                self._compute = None
        raise NoReference(
            "; ".join(problems) or "neither ONNX Runtime nor the reference evaluator can run it"
        )

    def _onnxruntime(self) -> Compute:
        # An extra: it is used where it is installed.
        runtime = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        # What is compared with is the model as it is written.
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = runtime.InferenceSession(
            self._proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        return lambda inputs: dict(zip(self._names, session.run(self._names, dict(inputs)), strict=True))

    def _evaluator(self) -> Compute:
        evaluator = ReferenceEvaluator(self._proto)
        return lambda inputs: dict(zip(self._names, evaluator.run(self._names, dict(inputs)), strict=True))
