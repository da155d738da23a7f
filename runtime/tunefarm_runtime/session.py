"""The interface of `onnxruntime.InferenceSession`: a program has to change only its import."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tunefarm_runtime.errors import RunError
from tunefarm_runtime.manifest import Tensor
from tunefarm_runtime.model import Extents, load

Array = NDArray[Any]
PROVIDER = "TunefarmExecutionProvider"
# ONNX Runtime's names of element types, where they aren't NumPy's.
_ONNX_NAMES = {"float32": "float", "float64": "double", "float4_e2m1fn": "float4e2m1"}


class SessionOptions:
    """Accepts every option of ONNX Runtime, and uses only `intra_op_num_threads`; 0 means the number that the
    model was tuned for."""

    def __init__(self) -> None:
        self.intra_op_num_threads = 0


class GraphOptimizationLevel(IntEnum):
    """ONNX Runtime's levels. They change nothing, because the library is already optimized."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_ALL = 99


class ExecutionMode(IntEnum):
    """ONNX Runtime's modes. They change nothing: the kernels of a library always run one after the other."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


def get_available_providers() -> list[str]:
    return [PROVIDER]


@dataclass(frozen=True)
class NodeArg:
    """An input or output, as ONNX Runtime describes one: `type` is `tensor(float)` and the like.

    A dimension that has several sizes is None in `shape`.
    """

    name: str
    shape: list[int | None]
    type: str


class IOBinding:
    """Inputs and outputs of one run, given by name. All of them are on the CPU."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[str, Array | None] = {}
        self._results: list[Array] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        self._inputs[name] = arr_on_cpu

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: DTypeLike,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Read an input from memory of the caller. Raises RunError for another device than the CPU."""
        _check_device(name, device_type)
        self._inputs[name] = _array_at(element_type, shape, buffer_ptr)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: DTypeLike | None = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output. With `buffer_ptr`, it is written there. Raises RunError for another device than
        the CPU."""
        _check_device(name, device_type)
        address, kind = buffer_ptr, element_type
        self._outputs[name] = None if address is None else _array_at(kind, shape or (), address)

    def clear_binding_inputs(self) -> None:
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        self._outputs.clear()
        self._results = []

    def copy_outputs_to_cpu(self) -> list[Array]:
        """Return the outputs that were bound, in the order of binding. Raises RunError before a run."""
        if not self._results:
            raise RunError("nothing was run with this binding yet: call run_with_iobinding first")
        return self._results

    def run(self) -> None:
        """Run the session on what is bound, as `run_with_iobinding` does."""
        if not self._outputs:
            raise RunError("no output is bound: call bind_output first")
        self._results = self._session.run(list(self._outputs), self._inputs)
        for name, result in zip(self._outputs, self._results, strict=True):
            place = self._outputs[name]
            if place is None:
                continue
            if (place.shape, place.dtype) != (result.shape, result.dtype):
                raise RunError(
                    f"output {name} is {result.dtype} of the shape {result.shape}, and was bound to "
                    f"{place.dtype} of {place.shape}"
                )
            np.copyto(place, result)


class InferenceSession:
    """A compiled model with the methods of `onnxruntime.InferenceSession` that programs use.

    Of `sess_options`, only `intra_op_num_threads` is used. `providers` and `run_options` are ignored: the
    library was compiled for one device.
    """

    def __init__(
        self,
        path_or_bytes: PathLike[str] | str,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        trusted: str | Sequence[str] | None = None,
        **_kwargs: Any,
    ) -> None:
        """Load the folder that `tunefarm tune` has written. `trusted` are public keys, as for `load`.

        Raises LoadError.
        """
        threads = getattr(sess_options, "intra_op_num_threads", 0) or None
        self._model = load(path_or_bytes, threads=threads, trusted=trusted)

    def get_inputs(self) -> list[NodeArg]:
        return [
            _node_arg(one, axes) for one, axes in zip(self._model.inputs, self._model.input_axes, strict=True)
        ]

    def get_outputs(self) -> list[NodeArg]:
        return [
            _node_arg(one, axes)
            for one, axes in zip(self._model.outputs, self._model.output_axes, strict=True)
        ]

    def get_providers(self) -> list[str]:
        return [PROVIDER]

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Array]:
        """Return the outputs of these names, all for None. Raises RunError for inputs that don't fit."""
        names = [one.name for one in self._model.outputs]
        unknown = [name for name in output_names or () if name not in names]
        if unknown:
            raise RunError(f"the model has no output {unknown[0]}: its outputs are {', '.join(names)}")
        outputs = self._model(**{name: _as_array(value) for name, value in input_feed.items()})
        found = dict(zip(names, self._model.to_numpy(outputs), strict=True))
        return [found[name] for name in output_names or names]

    def io_binding(self) -> IOBinding:
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        iobinding.run()


def _as_array(value: Any) -> Any:
    return value if hasattr(value, "dtype") else np.asarray(value)


def _check_device(name: str, device: str) -> None:
    if device.lower() != "cpu":
        raise RunError(f"{name} can't be bound on {device}: bind it on the CPU")


def _array_at(dtype: DTypeLike | None, shape: Sequence[int], address: int) -> Array:
    """Return an array in memory of the caller."""
    kind = np.dtype(dtype)
    memory = (ctypes.c_char * (kind.itemsize * math.prod(shape))).from_address(address)
    return np.ndarray(tuple(shape), kind, memoryview(memory))


def _node_arg(spec: Tensor, axes: Sequence[Extents]) -> NodeArg:
    shape = [lengths[0] if len(set(lengths)) == 1 else None for lengths in axes]
    name = _ONNX_NAMES.get(spec.dtype, spec.dtype.replace("float8_", "float8"))
    return NodeArg(spec.name, shape, f"tensor({name})")
