"""The interface of `onnxruntime.InferenceSession`: change the import, keep the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunefarm_runtime.errors import RunError
from tunefarm_runtime.manifest import Shape, Tensor
from tunefarm_runtime.model import Model, load

Array = NDArray[Any]
# ONNX Runtime's names of element types, where they aren't NumPy's.
_ONNX_NAMES = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class NodeArg:
    """An input or output, as ONNX Runtime describes one: `type` is `tensor(float)` and the like."""

    name: str
    shape: list[int]
    type: str


class IOBinding:
    """Inputs and outputs of one run, given by name.

    Outputs that are bound to an array of the caller's are copied into it.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Array | None] = {}
        self._results: list[Any] = []

    def bind_cpu_input(self, name: str, array: Any) -> None:
        self._inputs[name] = array

    def bind_output(self, name: str, array: Array | None = None) -> None:
        """Ask for an output. With `array`, it is written there."""
        self._outputs[name] = array

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Return the outputs that were bound, in the order of binding. Raises RunError before a run."""
        if not self._results:
            raise RunError("nothing was run with this binding yet: call run_with_iobinding first")
        return [np.asarray(one) for one in self._results]

    def _run(self) -> None:
        names = list(self._outputs) or None
        self._results = self._session.run(names, self._inputs)
        for result, array in zip(self._results, self._outputs.values(), strict=False):
            if array is not None:
                np.copyto(array, result, casting="no")


class InferenceSession:
    """A compiled model with the methods of `onnxruntime.InferenceSession` that programs use.

    Of `sess_options`, only `intra_op_num_threads` is used. `providers` are ignored: the library was compiled
    for one device.
    """

    def __init__(
        self,
        path_or_bytes: Path | str,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        **_kwargs: Any,
    ) -> None:
        """Load the folder that `tunefarm tune` has written. Raises LoadError."""
        threads = getattr(sess_options, "intra_op_num_threads", 0) or None
        self._model: Model = load(path_or_bytes, threads=threads)

    def get_inputs(self) -> list[NodeArg]:
        return [_node_arg(one) for one in self._model.inputs]

    def get_outputs(self) -> list[NodeArg]:
        return [_node_arg(one) for one in self._model.outputs]

    def get_providers(self) -> list[str]:
        return ["TunefarmExecutionProvider"]

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: Any = None
    ) -> list[Any]:
        """Return the outputs of these names, all for None. Raises RunError for inputs that don't fit."""
        specs = self._model.outputs
        names = [one.name for one in specs]
        unknown = [name for name in output_names or () if name not in names]
        if unknown:
            raise RunError(f"the model has no output {unknown[0]}: its outputs are {', '.join(names)}")
        outputs = self._model(**{name: _as_array(value) for name, value in input_feed.items()})
        found = dict(zip(names, self._model.to_numpy(outputs), strict=True))
        return [found[name] for name in output_names or names]

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        iobinding._run()


def _as_array(value: Any) -> Any:
    return value if hasattr(value, "dtype") else np.asarray(value)


def _node_arg(spec: Tensor) -> NodeArg:
    shape: Shape = spec.shape
    return NodeArg(spec.name, list(shape), f"tensor({_ONNX_NAMES.get(spec.dtype, spec.dtype)})")
