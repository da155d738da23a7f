"""Compute what a model should: by ONNX Runtime, else by ONNX's reference evaluator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx.reference import ReferenceEvaluator

from compiler.importing.onnx_runtime import load_session
from compiler.importing.spec import NoReference, first_line

Array = NDArray[Any]
# Inputs -> the requested values, by name.
Compute = Callable[[Mapping[str, Array]], dict[str, Array]]


class Reference:
    """Computes the values of these names as ONNX defines them.

    `doubt` is empty where ONNX Runtime computes them. Else it says why ONNX Runtime can't, and the evaluator
    does, whose kernels have mistakes.
    """

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
        self.doubt = ""

    def compute(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Raises NoReference."""
        problems = []
        while self._makers:
            try:
                self._compute = self._compute or self._makers[0]()
                return self._compute(inputs)
            except Exception as error:  # each has errors of its own
                problems.append(_reason(error))
                self.doubt = self.doubt or problems[0]
                del self._makers[0]
                self._compute = None
        raise NoReference(
            "; ".join(problems) or "neither ONNX Runtime nor the reference evaluator can run it"
        )

    def compute_edge(self, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """Return the values for inputs that ONNX Runtime may refuse, such as indices that are out of range;
        None where it does, or where the evaluator would have to compute them."""
        if self.doubt or self._compute is None:
            return None
        try:
            return self._compute(inputs)
        except Exception:  # of a type of ONNX Runtime's own
            return None

    def evaluate(self, inputs: Mapping[str, Array]) -> dict[str, Array] | None:
        """Return the values as ONNX's reference evaluator computes them; None if it can't."""
        try:
            return self._evaluator()(inputs)
        except Exception:  # its kernels raise any exception
            return None

    def _onnxruntime(self) -> Compute:
        run = load_session(self._proto, self._names)
        return lambda inputs: dict(zip(self._names, run(inputs), strict=True))

    def _evaluator(self) -> Compute:
        evaluator = ReferenceEvaluator(self._proto)
        return lambda inputs: dict(zip(self._names, evaluator.run(self._names, dict(inputs)), strict=True))


def _reason(error: Exception) -> str:
    if isinstance(error, ImportError):
        return "onnxruntime isn't installed: run `pip install onnxruntime`"
    return first_line(error).removeprefix("[ONNXRuntimeError] : ")
