"""`torch.compile(model, backend="tunefarm")`: run PyTorch's graphs in compiled libraries.

PyTorch finds `compile_graph` by the entry point `torch_dynamo_backends` of this distribution.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.job import MAX_TRIALS

_log = logging.getLogger(__name__)

# A graph with open dimensions is compiled for this many sizes; others run in PyTorch.
MAX_SIZES = 8


@dataclass(frozen=True)
class Options:
    """The `options` of torch.compile. With `trials`, tune before the first call. With `background`, tune on
    the service, and use the better library once it is available."""

    trials: int | None = None
    background: bool = False

    def __post_init__(self) -> None:
        if self.trials is not None and not (type(self.trials) is int and 1 <= self.trials <= MAX_TRIALS):
            raise ValueError(f"the option trials must be between 1 and {MAX_TRIALS}, not {self.trials!r}")
        if not isinstance(self.background, bool):
            raise ValueError(f"the option background must be True or False, not {self.background!r}")

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Options:
        """Return the options. Raises ValueError for an unknown option or a wrong value."""
        if unknown := sorted((given or {}).keys() - {"trials", "background"}):
            raise ValueError(
                f"the backend tunefarm has no option {unknown[0]!r}; its options are trials and background"
            )
        return cls(**(given or {}))


def compile_graph(
    graph: Any, example_inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Return a function that runs a torch.fx graph in a compiled library. If the graph can't be compiled, it
    runs in PyTorch, and the reason is logged.

    Raises ValueError for wrong options.
    """
    wanted = Options.of(options)
    from tunefarm.torch_backend.exported_graph import reason_to_reject

    reason = reason_to_reject(graph, example_inputs)
    if reason:
        _log.warning("torch.compile: a graph runs in PyTorch: %s", reason)
        forward: Callable[..., Any] = graph.forward
        return forward
    compiled = CompiledGraph(graph, example_inputs, wanted)
    if compiled.has_one_size:
        compiled.library_for(example_inputs)
    return compiled


class CompiledGraph:
    """A graph and its libraries, one for each size of its open dimensions."""

    def __init__(self, graph: Any, example_inputs: Sequence[Any], options: Options) -> None:
        from tunefarm.torch_backend.exported_graph import Weights, is_number, is_size

        self._graph = graph
        self._options = options
        self._weights = Weights(example_inputs)
        # The places of sizes, and of numbers that PyTorch passes as tensors.
        self._sizes = [
            place
            for place, value in enumerate(example_inputs)
            if is_size(value) or is_number(graph, place, value)
        ]
        # The library of each size; None for a size that runs in PyTorch.
        self._libraries: dict[tuple[float, ...], Any] = {}
        self._lock = threading.Lock()

    @property
    def has_one_size(self) -> bool:
        return not self._sizes

    def __call__(self, *args: Any) -> Any:
        library = self.library_for(args)
        if library is None or self._weights.changed():
            return self._graph(*args)
        with self._lock:
            return library(args)

    def library_for(self, args: Sequence[Any]) -> Any:
        """Return the library for arguments, compiled at its first use; None if the graph runs in PyTorch."""
        size = tuple(float(args[place]) for place in self._sizes)
        if size in self._libraries:
            return self._libraries[size]
        with self._lock:
            if size not in self._libraries:
                self._libraries[size] = None
                if len(self._libraries) > MAX_SIZES:
                    self._libraries.pop(size)
                    return None
                self._libraries[size] = self._compiled(size, args)
        return self._libraries[size]

    def _compiled(self, size: tuple[float, ...], args: Sequence[Any]) -> Any:
        from torch import Tensor

        from tunefarm.torch_backend.exported_graph import CannotCompile, export
        from tunefarm.torch_backend.libraries import compile_with_known, tune_in_background, tune_now

        try:
            exported = export(self._graph, args, self._weights)
            if self._options.background:
                # A copy, because the program may change its tensors meanwhile.
                inputs = [value.detach().clone() if isinstance(value, Tensor) else value for value in args]

                def swap(folder: Any) -> None:
                    self._libraries[size] = exported.checked(folder, self._graph, inputs)

                tune_in_background(exported, self._options.trials, swap)
            elif self._options.trials is not None:
                return exported.checked(tune_now(exported, self._options.trials), self._graph, args)
            return exported.checked(compile_with_known(exported), self._graph, args)
        except CannotCompile as error:
            _log.warning("torch.compile: a graph runs in PyTorch: %s", error)
            return None
