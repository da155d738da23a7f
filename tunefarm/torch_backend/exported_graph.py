"""A graph that PyTorch captured, as a program of torch.export whose weights are constants."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from compiler.importing.spec import first_line


class CannotCompile(Exception):
    """A graph can't be compiled. The message says why."""


def is_size(value: Any) -> bool:
    """Return whether an argument of a graph is the size of an open dimension."""
    return isinstance(value, int | torch.SymInt) and not isinstance(value, bool)


def is_number(graph: Any, place: int, value: Any) -> bool:
    """Return whether a graph takes an argument only as a number: PyTorch passes a module's floats as tensors
    where all sizes are open."""
    node = list(graph.graph.find_nodes(op="placeholder"))[place]
    reads = [(user.op, user.target) for user in node.users]
    return isinstance(value, torch.Tensor) and value.ndim == 0 and {*reads} == {("call_method", "item")}


def reason_to_reject(graph: Any, example_inputs: Sequence[Any]) -> str:
    """Return why a graph isn't worth an export; "" if it is."""
    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return "its gradients are asked for: call the model inside torch.no_grad() or torch.inference_mode()"
    if elsewhere := next((tensor.device for tensor in tensors if tensor.device.type != "cpu"), None):
        return f"it has tensors on {elsewhere}, and the backend compiles for the CPU"
    if not all(isinstance(value, torch.Tensor) or is_size(value) for value in example_inputs):
        return "it has inputs that are no tensors"
    if not any(node.op.startswith("call_") for node in graph.graph.nodes):
        return "it computes nothing"
    return ""


class Weights:
    """The parameters and buffers among a graph's arguments. Libraries have their values as constants."""

    def __init__(self, example_inputs: Sequence[Any]) -> None:
        self.tensors: dict[int, torch.Tensor] = {
            place: value
            for place, value in enumerate(example_inputs)
            if isinstance(value, torch.nn.Parameter) or getattr(value, "_dynamo_static_input_type", None)
        }
        self._versions = self._read_versions()

    def changed(self) -> bool:
        """Return whether a weight was changed, or has new memory."""
        return self._read_versions() != self._versions

    def _read_versions(self) -> list[tuple[int, int]]:
        return [
            (tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version)
            for tensor in self.tensors.values()
        ]


class _Bound(torch.nn.Module):
    """A graph with its weights, numbers and sizes bound: a function of its inputs that returns the distinct
    tensors among its outputs."""

    def __init__(
        self, graph: Any, args: Sequence[Any], inputs: Sequence[int], weights: Weights, outputs: Sequence[int]
    ) -> None:
        super().__init__()
        self._graph = graph
        self._inputs = inputs
        self._args = [0.0 if isinstance(value, torch.Tensor) else int(value) for value in args]
        self._weights = list(weights.tensors)
        for place, tensor in weights.tensors.items():
            self.register_buffer(f"weight{place}", tensor.detach())
        self._outputs = outputs

    def forward(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args: list[Any] = list(self._args)
        for place in self._weights:
            args[place] = getattr(self, f"weight{place}")
        for place, value in zip(self._inputs, inputs, strict=True):
            args[place] = value
        results = self._graph(*args)
        return tuple(results[place] for place in self._outputs)


@dataclass(frozen=True)
class Exported:
    """An exported graph. `inputs` are the positions of the library's inputs among the graph's arguments. For
    each of the graph's outputs, `outputs` has its position among the library's outputs; None if it isn't a
    tensor."""

    program: Any
    inputs: tuple[int, ...]
    outputs: tuple[int | None, ...]

    def checked(self, folder: TemporaryDirectory[str], graph: Any, args: Sequence[Any]) -> TorchLibrary:
        """Load a compiled library, and compare it with the graph on its arguments.

        Raises CannotCompile if it can't be loaded, fails, or its outputs differ.
        """
        from compiler.measuring.outputs import compare_outputs

        library = TorchLibrary(self, folder)
        try:
            results = library(args)
        except Exception as error:  # TVM raises classes that its C++ code names
            raise CannotCompile(f"the library fails: {first_line(error)}") from error
        with torch.no_grad():
            pairs = [
                (wanted, found)
                for wanted, found in zip(graph(*args), results, strict=True)
                if isinstance(wanted, torch.Tensor)
            ]
        for wanted, found in pairs:
            if wanted.dtype != found.dtype:
                raise CannotCompile(f"it would compute {found.dtype} instead of {wanted.dtype}")
        expected, actual = ([_array(tensor) for tensor in side] for side in zip(*pairs, strict=True))
        if difference := compare_outputs(expected, actual, _coarsest(pairs)):
            raise CannotCompile(f"the library computes something else: {difference}")
        return library


class TorchLibrary:
    """A compiled library that takes the graph's arguments and returns its outputs, without copies."""

    def __init__(self, exported: Exported, folder: TemporaryDirectory[str]) -> None:
        """Raises CannotCompile."""
        from tunefarm_runtime.errors import LoadError
        from tunefarm_runtime.library import Library
        from tunefarm_runtime.manifest import Manifest

        self._folder = folder  # deleted with this
        try:
            self._library = Library(Manifest.read(Path(folder.name)))
        except LoadError as error:
            raise CannotCompile(str(error)) from error
        self._inputs, self._outputs = exported.inputs, exported.outputs

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        results = self._library.run([args[place].detach() for place in self._inputs])
        tensors = [torch.from_dlpack(result) for result in results]
        return [None if place is None else tensors[place] for place in self._outputs]


def export(graph: Any, args: Sequence[Any], weights: Weights) -> Exported:
    """Export a graph for the sizes of its arguments. Raises CannotCompile."""
    numbers = {place: float(value) for place, value in enumerate(args) if is_number(graph, place, value)}
    inputs = tuple(
        place
        for place, value in enumerate(args)
        if isinstance(value, torch.Tensor) and place not in weights.tensors and place not in numbers
    )
    if not inputs:
        raise CannotCompile("it has no inputs")
    [returned] = next(node for node in graph.graph.nodes if node.op == "output").args
    different: dict[Any, int] = {}
    outputs: list[int | None] = []
    chosen: list[int] = []
    for place, node in enumerate(returned):
        value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else node
        if value is None:
            outputs.append(None)
        elif not isinstance(value, torch.Tensor):
            raise CannotCompile(f"its output {place} is no tensor")
        else:
            if node not in different:
                different[node] = len(different)
                chosen.append(place)
            outputs.append(different[node])
    if not chosen:
        raise CannotCompile("it has no outputs")
    bound = _Bound(_prepared(graph, numbers), args, inputs, weights, chosen)
    examples = tuple(args[place].detach() for place in inputs)
    try:
        # The graph is complete, so PyTorch's information about the original frame isn't needed.
        with torch._guards.tracing(None), torch.no_grad():
            program = torch.export.export(bound, examples, strict=False)
    except Exception as error:  # PyTorch has its own exception classes for failed exports
        raise CannotCompile(f"PyTorch can't export it: {first_line(error)}") from error
    return Exported(program, inputs, tuple(outputs))


def _prepared(graph: Any, numbers: Mapping[int, float]) -> Any:
    """Return a copy of a graph with the values of numbers, and without switches of the gradient mode, because
    a library computes no gradients."""
    copied = copy.copy(graph)
    copied.graph = copy.deepcopy(graph.graph)
    for node in list(copied.graph.nodes):
        if node.op == "call_function" and node.target is torch._C._set_grad_enabled:
            copied.graph.erase_node(node)
    places = list(copied.graph.find_nodes(op="placeholder"))
    for place, number in numbers.items():
        for read in list(places[place].users):
            for user in list(read.users):
                user.args, user.kwargs = torch.fx.map_arg(
                    (user.args, user.kwargs),
                    lambda node, read=read, number=number: number if node is read else node,
                )
            copied.graph.erase_node(read)
    copied.recompile()
    return copied


def _array(tensor: torch.Tensor) -> Any:
    """Return a tensor as an array. bfloat16, which NumPy lacks, becomes float32."""
    plain = tensor.detach()
    return (plain.float() if plain.dtype == torch.bfloat16 else plain).numpy()


def _coarsest(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> str:
    """Return the output type with the largest epsilon, which sets the tolerance of the comparison."""
    dtypes = {wanted.dtype for wanted, _ in pairs}
    for dtype, name in ((torch.bfloat16, "bfloat16"), (torch.float16, "float16")):
        if dtype in dtypes:
            return name
    return "float32"
