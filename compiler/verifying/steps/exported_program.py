"""Split a PyTorch exported program into its operators."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from compiler.importing.formats.exported_program import ExportedProgram
from compiler.importing.spec import TensorSpec
from compiler.verifying.steps.step import GIVEN, Step, StepwiseModel

Array = NDArray[Any]
# Operators that index: the positions of the tensor, of the index and, if it is an argument, of the axis.
_INDEXES = {"embedding": (0, 1, None), "index_select": (0, 2, 1), "gather": (0, 2, 1)}
# Operators that pass their first argument on.
_HANDS_ON = {"_to_copy", "clone", "expand", "permute", "squeeze", "unsqueeze", "view"}


def split_into_steps(file: ExportedProgram) -> StepwiseModel:
    """Return the steps of a program in PyTorch's core operators."""
    torch: Any = importlib.import_module("torch")
    program = file.decomposed
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    nodes = [node for node in program.graph.nodes if node.op == "call_function"]
    values = [node for node in nodes if _is_tensor(node)]
    observed = torch.fx.Graph()
    copies = {node: _copied(observed, node, {}) for node in placeholders}
    for node in nodes:
        copies[node] = _copied(observed, node, copies)
    observed.output(tuple(copies[node] for node in values))

    apart = torch.fx.Graph()
    first = {node: _copied(apart, node, {}) for node in placeholders}
    for node in values:
        given = apart.placeholder(f"{node.name}_given")
        given.meta = dict(node.meta)
        first[node] = given
    computed = dict(first)
    for node in nodes:
        computed[node] = _copied(apart, node, {**computed, **first})
    apart.output(tuple(computed[node] for node in values))

    names = [copies[node].name for node in values]
    specs = tuple(TensorSpec(node.name, tuple(node.meta["val"].shape), _dtype(node)) for node in values)
    further = tuple(TensorSpec(f"{spec.name}{GIVEN}", spec.shape, spec.dtype) for spec in specs)
    plain = _program(torch, file, observed, [], names)
    given_names = [first[node].name for node in values]
    cut = _program(torch, file, apart, given_names, [computed[node].name for node in values])

    def reference(inputs: Mapping[str, Array]) -> dict[str, Array]:
        found = ExportedProgram(plain, plain, file.inputs).compute(inputs)
        return dict(zip([spec.name for spec in specs], found, strict=True))

    return StepwiseModel(
        tuple(_step(node) for node in values),
        reference,
        ExportedProgram(cut, cut, (*file.inputs, *further)).to_relax,
    )


def index_extents(file: ExportedProgram) -> dict[str, int]:
    """Return the number of indexed parts for each input that holds indices, by name."""
    graph = file.decomposed.graph
    found: dict[str, int] = {}
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        name = _kind(node)
        uses: list[tuple[Any, int]] = []
        if name in _INDEXES:
            data, index, axis = _INDEXES[name]
            along = node.args[axis] if axis is not None else 0
            uses.append((node.args[index], int(node.args[data].meta["val"].shape[along])))
        elif name in ("index", "index_put"):
            shape = node.args[0].meta["val"].shape
            uses += [(one, int(shape[axis])) for axis, one in enumerate(node.args[1]) if one is not None]
        for use, extent in uses:
            while use.op == "call_function" and _kind(use) in _HANDS_ON:
                use = use.args[0]
            if use.op == "placeholder":
                found[use.name] = min(extent, found.get(use.name, extent))
    if file.cache is not None:  # the last of the new tokens fits into the buffers, too
        cache = file.cache.spec
        found[cache.position] = cache.capacity - cache.count + 1
    return found


def _is_tensor(node: Any) -> bool:
    return hasattr(node.meta.get("val"), "dtype") and hasattr(node.meta["val"], "shape")


def _dtype(node: Any) -> str:
    return str(node.meta["val"].dtype).removeprefix("torch.")


def _kind(node: Any) -> str:
    return str(getattr(node.target, "__name__", node.target)).partition(".")[0]


def _step(node: Any) -> Step:
    source = node.args[0] if _kind(node) == "getitem" else node
    label = f"operator {_kind(source)} of node '{node.name}'"
    inputs = tuple(one.name for one in source.all_input_nodes)
    return Step(frozenset({_kind(source)}), label, inputs, (node.name,))


def _copied(graph: Any, node: Any, values: Mapping[Any, Any]) -> Any:
    """Copy a node under its own name, even if the graph would choose another name, as for `input`."""
    copy = graph.node_copy(node, lambda one: values[one])
    copy.name = node.name
    if node.op == "placeholder":
        copy.target = node.target
    copy.meta = dict(node.meta)
    return copy


def _program(torch: Any, file: ExportedProgram, graph: Any, given: list[str], results: list[str]) -> Any:
    """Return a program of a graph that reads `given` after the inputs, and returns the `results`."""
    signatures, program = torch.export.graph_signature, file.decomposed

    def argument(name: str) -> Any:
        return signatures.TensorArgument(name=name)

    inputs = [
        *program.graph_signature.input_specs,
        *(signatures.InputSpec(signatures.InputKind.USER_INPUT, argument(name), None) for name in given),
    ]
    outputs = [
        signatures.OutputSpec(signatures.OutputKind.USER_OUTPUT, argument(name), None) for name in results
    ]
    return torch.export.ExportedProgram(
        root=program.graph_module,
        graph=graph,
        graph_signature=signatures.ExportGraphSignature(inputs, outputs),
        state_dict=program.state_dict,
        range_constraints={},
        module_call_graph=program.module_call_graph,
        constants=program.constants,
        verifiers=program.verifiers,
    )
