"""Find the cache of an exported decoder: buffers into which each call writes the rows of new tokens.

    keys = index_put(b_keys, [None, None, cache_position], rows)    # index_copy_, or y[:, :, at] = rows
    return keys, logits                                             # the program updates its buffer `keys`

The library keeps such buffers, writes the rows in place and doesn't return them. The program's own masks hide
rows that hold no token yet. A program of several tokens takes all of their positions. The library takes the
first, and computes the others.
"""

from __future__ import annotations

import importlib
import math
from dataclasses import dataclass, replace
from typing import Any

from compiler.importing.spec import CacheSpec, Derived, Shape, TensorSpec
from core.decoder_names import TOKENS

# Operators that return the elements of their first argument in the same order.
_HANDS_ON = {"_to_copy", "clone", "squeeze", "unsqueeze", "view"}


class CacheNotInPlace(Exception):
    """The buffers that a program writes aren't a decoder's cache. The message says why."""


@dataclass(frozen=True)
class KeptCache:
    """A program without its buffers among the outputs, and its cache.

    `inputs` ends with the position of the first new token and the buffers. `writes` maps the nodes that write
    rows to their axes.
    """

    program: Any
    inputs: tuple[TensorSpec, ...]
    spec: CacheSpec
    writes: dict[str, int]


def find_cache(program: Any, inputs: tuple[TensorSpec, ...], buffers: dict[str, str]) -> KeptCache:
    """Return the cache of a program that takes its buffers as inputs and returns them.

    `buffers` maps the outputs that are buffers to their inputs. Raises
    CacheNotInPlace.
    """
    nodes = {node.name: node for node in program.graph.nodes}
    specs = {spec.name: spec for spec in inputs}
    axes, writes, positions = {}, {}, set()
    for output, name in buffers.items():
        node = nodes[output]
        axis, position = _write(node, name, specs)
        axes[name], writes[output] = axis, axis
        positions.add(position)
    if len(positions) != 1:
        raise CacheNotInPlace(f"its buffers are written at places that {len(positions)} inputs give")
    capacities = {specs[name].shape[axis] for name, axis in axes.items()}
    if len(capacities) != 1:
        raise CacheNotInPlace(f"its buffers have different lengths, {sorted(capacities)}")
    (position,), (capacity,) = positions, capacities
    count = math.prod(specs[position].shape)
    tokens, token_axis = _tokens(
        [spec for spec in inputs if spec.name not in {*buffers.values(), position}], count
    )
    if capacity <= count:
        raise CacheNotInPlace(f"its buffers hold {capacity} tokens, and it writes {count} at once")
    kept = _rewritten(program, set(buffers), position, specs[position].shape)
    outputs = {str(name): nodes[str(name)].meta["val"].shape for name in kept.graph_signature.user_outputs}
    output_axes = {name: 1 for name, shape in outputs.items() if len(shape) > 1 and shape[1] == count}
    if count > 1 and (others := outputs.keys() - output_axes):
        raise CacheNotInPlace(f"its output '{min(others)}' doesn't have one row for each of {count} tokens")
    first_position = replace(specs[position], shape=(1,) * len(specs[position].shape))
    spec = CacheSpec(
        position=position,
        capacity=capacity,
        count=count,
        buffers=axes,
        tokens={tokens.name: token_axis},
        outputs=output_axes,
        derived=(Derived(position, "int64", specs[position].shape, False),),
    )
    first = [one for one in inputs if one.name != position and one.name not in axes]
    return KeptCache(kept, (*first, first_position, *(specs[name] for name in axes)), spec, writes)


def _write(node: Any, buffer: str, specs: dict[str, TensorSpec]) -> tuple[int, str]:
    """Return the axis of the rows that a node writes into a buffer, and the input with their place."""
    if getattr(node.target, "__name__", "") != "index_put.default" or node.args[0].name != buffer:
        raise CacheNotInPlace(f"its buffer '{buffer}' isn't only written at one place, as index_copy_ does")
    axes = [axis for axis, index in enumerate(node.args[1]) if index is not None]
    if len(axes) != 1 or node.args[3:4] == (True,) or len(node.args[0].users) != 1:
        raise CacheNotInPlace(
            f"its buffer '{buffer}' is also read, added to, or written at places of several axes"
        )
    place = node.args[1][axes[0]]
    places = tuple(place.meta["val"].shape)
    while place.op == "call_function" and place.target.__name__.partition(".")[0] in _HANDS_ON:
        place = place.args[0]
    spec = specs.get(place.name) or _counted_from(node.args[1][axes[0]], specs)
    shapes = (places, (1, *places)) if len(places) == 1 else ((1,), (1, 1))
    if spec is None or spec.dtype != "int64" or spec.shape not in shapes:
        raise CacheNotInPlace(
            f"no input with an int64 for each new token gives the places of rows in its buffer '{buffer}'"
        )
    return axes[0], spec.name


def _counted_from(place: Any, specs: dict[str, TensorSpec]) -> TensorSpec | None:
    """Return the input from whose first element a node counts the places of rows; None if it doesn't.

    index = arange(4) + select(cache_position, 0, 0)
    """
    torch = importlib.import_module("torch")
    waiting, found = [place], set()
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.all_input_nodes
    inputs = [node for node in found if node.op == "placeholder"]
    spec = specs.get(inputs[0].name) if len(inputs) == 1 else None
    if spec is None or spec.dtype != "int64":
        return None
    count = math.prod(place.meta["val"].shape)
    for first in (0, 3):
        given = torch.arange(first, first + math.prod(spec.shape)).reshape(spec.shape)
        values = {inputs[0]: given}
        for node in place.graph.nodes:
            if node in found and node not in values:
                args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
                values[node] = node.target(*args, **kwargs)
        if values[place].reshape(-1).tolist() != [*range(first, first + count)]:
            return None
    return spec


def _tokens(inputs: list[TensorSpec], count: int) -> tuple[TensorSpec, int]:
    """Return the input with the new tokens, by its name, and the axis of the tokens. If no input has such a
    name, there must be only one input."""
    named = [spec for spec in inputs if spec.name in TOKENS]
    found = named or inputs
    if len(found) != 1:
        raise CacheNotInPlace(f"none of its inputs is called {', '.join(TOKENS)}")
    (tokens,) = found
    axis = min(1, len(tokens.shape) - 1)
    if axis < 0 or tokens.shape[axis] != count:
        wanted = "one token" if count == 1 else f"{count} tokens"
        raise CacheNotInPlace(f"its input '{tokens.name}' has the shape {tokens.shape}, not {wanted}")
    return tokens, axis


def _rewritten(program: Any, names: set[str], position: str, shape: Shape) -> Any:
    """Return a copy of a program that doesn't return values of these names, and takes the first of the
    positions, whose shape it had taken."""
    torch = importlib.import_module("torch")
    signatures, graph = torch.export.graph_signature, torch.fx.Graph()
    copies: dict[Any, Any] = {}
    nodes = list(program.graph.nodes)
    placeholders = [node for node in nodes if node.op == "placeholder"]
    for node in placeholders:
        copies[node] = graph.node_copy(node)
        copies[node].name = node.name
    if math.prod(shape) > 1:
        (old,) = (node for node in placeholders if node.name == position)
        copies[old] = _positions(torch, graph, copies[old], shape)
    for node in nodes[len(placeholders) :]:
        if node.op == "output":
            results = tuple(copies[one] for one in node.args[0] if one.name not in names)
            graph.output(results).meta = dict(node.meta)
            continue
        copies[node] = graph.node_copy(node, copies.__getitem__)
        copies[node].name = node.name
    signature = program.graph_signature
    outputs = [spec for spec in signature.output_specs if spec.arg.name not in names]
    return torch.export.ExportedProgram(
        root=program.graph_module,
        graph=graph,
        graph_signature=signatures.ExportGraphSignature([*signature.input_specs], outputs),
        state_dict=program.state_dict,
        range_constraints={},
        module_call_graph=program.module_call_graph,
        constants=program.constants,
        verifiers=program.verifiers,
    )


def _positions(torch: Any, graph: Any, first: Any, shape: Shape) -> Any:
    """Make a placeholder the first position, and return a node with the positions in a shape."""
    aten = torch.ops.aten
    mode = first.meta["val"].fake_mode
    first.meta = {"val": mode.from_tensor(torch.zeros((1,) * len(shape), dtype=torch.int64))}

    def call(target: Any, *args: Any) -> Any:
        node = graph.call_function(target, args)
        with mode:
            node.meta["val"] = target(*torch.fx.node.map_arg(args, lambda one: one.meta["val"]))
        return node

    count = math.prod(shape)
    steps = call(aten.arange.start_step, 0, count)
    return call(aten.add.Tensor, first, call(aten.view.default, steps, list(shape)))
