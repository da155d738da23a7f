"""Rewrite decoders so that their cache stays in place, and new rows are written into it.

A decoder's file takes the keys and values of all earlier tokens. It returns them with the new tokens' rows:

    past_key_values.0.key [1, heads, past, size]      ->  present.0.key [1, heads, past + tokens, size]

The library takes buffers with a fixed number of rows, and `past_length`, the number of earlier tokens. Four
kinds of computations are rewritten:

    Concat(past, rows)       ->  write the rows into the buffer, beginning at row `past_length`
    Softmax(scores)          ->  Softmax(Where(key > past_length + query, lowest, scores))
    past, ..., past + tokens ->  past_length, ..., past_length + tokens (computed positions)
    x[past : past + tokens]  ->  Gather(x, past_length, ..., past_length + tokens)

Products with keys contract their last axis, and add up vectors of rows. So the library keeps keys with their
rows last, [1, heads, size, rows], and no step transposes them.

To find these computations, the file is imported with unusual lengths. `compiler.verifying.decoder_cache`
compares the rewritten decoder with the file.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from compiler.importing.onnx_file import OnnxFile, checked, fix_inputs
from compiler.importing.onnx_graph import Graph
from compiler.importing.operators import CONVERTERS
from compiler.importing.operators.forms import FORMS
from compiler.importing.spec import NARROW, CacheSpec, Derived, ModelError, Shape, TensorSpec
from compiler.importing.values import Value
from core.decoder_names import MASKS, POSITIONS, TOKENS, cache_inputs, is_present

Array = NDArray[Any]
PAST_LENGTH = "past_length"
# Unusual lengths, so that values that derive from them can be recognized.
PROBE_PAST, PROBE_TOKENS = 37, 5
MIN_OPSET = 13
_PREFIX = "tunefarm."
_FLOATS = {
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
    onnx.TensorProto.DOUBLE,
}


class CacheNotInPlace(Exception):
    """A decoder's cache can't stay in place. The message says why."""


def keep_cache(proto: onnx.ModelProto, shapes: Mapping[str, Shape], weights: Mapping[str, Array]) -> OnnxFile:
    """Check a parsed model. If it is a decoder with open lengths, rewrite it to keep its cache in place.

    The buffers have the number of rows that `shapes` gives. Raises ModelError.
    """
    known = {tensor.name for tensor in proto.graph.initializer} | weights.keys()
    inputs = {value.name: value for value in proto.graph.input if value.name not in known}
    axes = {name: _open_axes(inputs[name]) for name in cache_inputs(inputs)}
    ranks = {name: len(value.type.tensor_type.shape.dim) for name, value in inputs.items()}
    are_possible = all(ranks.get(name) == len(shape) for name, shape in shapes.items())
    is_decoder = any(axes.values()) and any(is_present(output.name) for output in proto.graph.output)
    if not (is_decoder and are_possible):
        return checked(proto, shapes, weights)
    try:
        return _Decoder.of(proto, inputs, axes, shapes, weights).rewritten()
    except CacheNotInPlace as error:
        return replace(checked(proto, shapes, weights), no_cache=str(error))


def _open_axes(value: onnx.ValueInfoProto) -> list[int]:
    """Return the axes with open extents, except the batch."""
    dims = value.type.tensor_type.shape.dim
    return [axis for axis, dim in enumerate(dims) if axis and dim.dim_value <= 0]


class _Probe(Graph):
    """An import that keeps the values of the main graph."""

    def __init__(self) -> None:
        super().__init__(CONVERTERS, FORMS)
        self.values: dict[str, Value] | None = None

    def _nodes(
        self, nodes: Iterable[onnx.NodeProto], values: dict[str, Value], opsets: Mapping[str, int]
    ) -> None:
        if self.values is None:
            self.values = values
        super()._nodes(nodes, values, opsets)


@dataclass
class _Decoder:
    """A decoder's file, and the values that the probe, an import with unusual lengths, found in it."""

    file: OnnxFile
    source: onnx.ModelProto
    values: Mapping[str, Value]
    axes: Mapping[str, int]
    tokens: str
    probed_tokens: int
    shapes: Mapping[str, Shape]

    @classmethod
    def of(
        cls,
        proto: onnx.ModelProto,
        inputs: Mapping[str, onnx.ValueInfoProto],
        open_axes: Mapping[str, Sequence[int]],
        shapes: Mapping[str, Shape],
        weights: Mapping[str, Array],
    ) -> _Decoder:
        """Import a decoder with the probe's lengths. Raises CacheNotInPlace."""
        tokens = next((name for name in TOKENS if name in inputs), None)
        if tokens is None:
            raise CacheNotInPlace(f"it has none of the inputs {', '.join(TOKENS)}")
        opset = next((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), 0)
        if opset < MIN_OPSET:
            raise CacheNotInPlace(f"its opset {opset} is older than {MIN_OPSET}: export it again")
        for name, found in open_axes.items():
            if len(found) != 1:
                raise CacheNotInPlace(f"its input '{name}' has {len(found)} open dimensions beside its batch")
        axes = {name: found[0] for name, found in open_axes.items()}
        declared = [dim.dim_value for dim in inputs[tokens].type.tensor_type.shape.dim]
        if len(declared) < 2:
            raise CacheNotInPlace(f"its input '{tokens}' has no dimension for tokens")
        count = declared[1] if declared[1] > 0 else PROBE_TOKENS
        batch = shapes[tokens][0] if tokens in shapes else max(declared[0], 1)
        probed = _probe_shapes(inputs, axes, shapes, tokens, batch, count)
        copy, graph = onnx.ModelProto(), _Probe()
        copy.CopyFrom(proto)
        try:
            file = checked(copy, probed, weights)
            graph.module(file, file.output_names)
        except ModelError as error:
            raise CacheNotInPlace(f"it can't be imported with other lengths ({error})") from error
        source = onnx.ModelProto()
        source.CopyFrom(proto)
        source.graph.ClearField("initializer")
        return cls(file, source, graph.values or {}, axes, tokens, count, shapes)

    @property
    def _graph(self) -> onnx.GraphProto:
        return self.file.proto.graph

    @cached_property
    def _nodes(self) -> list[onnx.NodeProto]:
        return list(self._graph.node)

    def rewritten(self) -> OnnxFile:
        """Return the file for the requested shapes, with its cache in place.

        Raises CacheNotInPlace, ModelError.
        """
        specs = {spec.name: spec for spec in self.file.inputs}
        for name in self.axes:
            if (dtype := specs[name].dtype) in NARROW:
                raise CacheNotInPlace(
                    f"its input '{name}' is {dtype}, which a library takes as a copy in bytes"
                )
        concats = self._concats()
        capacity, count = self._lengths()
        rewrite = _Rewrite(self._graph, self._nodes, self.values, self.probed_tokens, capacity, count)
        moved = {
            name: self.axes[name]
            for name, concat in concats.items()
            if self._has_keys(name, concat.output[0])
        }
        for name, axis in self.axes.items():
            rewrite.shorten_shape(name, axis, name in moved)
        rewrite.write_rows(concats, self.axes, moved)
        rewrite.replace_positions()
        if not rewrite.mask_softmax({concat.output[0] for concat in concats.values()}):
            raise CacheNotInPlace("it has no Softmax over the cache's keys")
        derived = rewrite.derive([specs[name] for name in (*MASKS, *POSITIONS) if name in specs])
        return self._finished(rewrite.nodes, derived, moved, capacity, count)

    def _has_keys(self, name: str, joined: str) -> bool:
        """Return whether a buffer holds keys: in the next products with it, its rows are the columns."""
        tainted, products = {joined}, []
        for node in self._nodes:
            if not tainted.intersection(node.input):
                continue
            if node.op_type == "MatMul":
                columns = self.values[node.input[1]].shape[-1] if node.input[1] in tainted else 0
                products.append(columns == PROBE_PAST + self.probed_tokens)
            elif node.op_type != "Shape":
                tainted.update(node.output)
        return bool(products) and all(products) and self.axes[name] != self.values[name].rank - 1

    def _finished(
        self,
        nodes: Sequence[onnx.NodeProto],
        derived: tuple[Derived, ...],
        moved: dict[str, int],
        capacity: int,
        count: int,
    ) -> OnnxFile:
        """Return the rewritten file. `past_length` and the buffers are its last inputs."""
        graph = self._graph
        outputs = [output for output in graph.output if not is_present(output.name)]
        if not outputs:
            raise CacheNotInPlace("it has no output besides its cache")
        axes = {output.name: self._token_axis(output.name) for output in outputs}
        removed = {one.name for one in derived}
        made = onnx.GraphProto()
        made.input.extend(value for value in graph.input if value.name not in {*removed, *self.axes})
        made.input.append(helper.make_tensor_value_info(PAST_LENGTH, onnx.TensorProto.INT64, [1]))
        made.input.extend(value for value in graph.input if value.name in self.axes)
        made.output.extend(onnx.ValueInfoProto(name=one.name, type=one.type) for one in outputs)
        made.node.extend(nodes)
        for field in ("input", "output", "node", "value_info"):
            graph.ClearField(field)
        graph.MergeFrom(made)
        for output in graph.output:
            output.type.tensor_type.ClearField("shape")
        for value in graph.input:
            if value.name in self.shapes:
                for dim in value.type.tensor_type.shape.dim:
                    dim.dim_param = "open"
        shapes = {
            name: tuple(shape[axis] for axis in rows_last(len(shape), moved[name]))
            if name in moved
            else shape
            for name, shape in self.shapes.items()
            if name not in removed
        }
        specs = fix_inputs(graph, shapes, self.file.weights)
        cache = CacheSpec(
            position=PAST_LENGTH,
            capacity=capacity,
            count=count,
            buffers={
                name: self.values[name].rank - 1 if name in moved else axis
                for name, axis in self.axes.items()
            },
            tokens={self.tokens: 1},
            outputs={name: axis for name, axis in axes.items() if axis is not None},
            derived=derived,
            moved=moved,
        )
        return replace(
            self.file,
            inputs=specs,
            output_names=tuple(axes),
            original=self.file.proto,
            cache=cache,
            source=self.source,
        )

    def _token_axis(self, name: str) -> int | None:
        """Return the output's axis of new tokens; None if it has none."""
        axes = range(1, self.values[name].rank)
        return next((axis for axis in axes if self.values[name].shape[axis] == self.probed_tokens), None)

    def _lengths(self) -> tuple[int, int]:
        """Return the number of rows of each buffer, and of new tokens. Raises CacheNotInPlace, ModelError."""
        for name in self.axes:
            if name not in self.shapes:
                raise ModelError(f"input '{name}' has a dynamic dimension: give its shape")
        found = {self.shapes[name][axis] for name, axis in self.axes.items()}
        if len(found) > 1:
            raise CacheNotInPlace(f"its buffers have different lengths, {sorted(found)}: give them one")
        (capacity,) = found
        count = self.shapes[self.tokens][1] if self.tokens in self.shapes else self.probed_tokens
        if not 0 < count < capacity:
            raise ModelError(
                f"a cache of {capacity} tokens can't take {count} at once: give '{self.tokens}' a "
                "smaller shape, or the cache a larger one"
            )
        return capacity, count

    def _concats(self) -> dict[str, onnx.NodeProto]:
        """Map each buffer to the Concat that appends rows to it. Raises CacheNotInPlace."""
        consumers: dict[str, list[onnx.NodeProto]] = defaultdict(list)
        for node in self._nodes:
            for name in dict.fromkeys(node.input):
                consumers[name].append(node)
        outputs = {output.name for output in self._graph.output}
        concats = {}
        for name, axis in self.axes.items():
            used = [node for node in consumers[name] if node.op_type != "Shape"]
            if len(used) != 1 or used[0].op_type != "Concat" or list(used[0].input)[:1] != [name]:
                kinds = ", ".join(sorted({node.op_type for node in used})) or "nothing"
                raise CacheNotInPlace(
                    f"its input '{name}' goes to {kinds}; it may only go to Concat(input, rows)"
                )
            (concat,) = used
            rows = self.values[concat.input[1]].shape if len(concat.input) == 2 else ()
            own = self.values[name].shape
            if rows != (*own[:axis], self.probed_tokens, *own[axis + 1 :]):
                raise CacheNotInPlace(
                    f"its input '{name}' isn't concatenated with the rows of the new tokens"
                )
            handed = {concat.output[0]} | {
                node.output[0] for node in consumers[concat.output[0]] if node.op_type == "Identity"
            }
            if not any(is_present(one) for one in handed & outputs):
                raise CacheNotInPlace(f"no output present.* returns '{name}' with the new rows")
            concats[name] = concat
        return concats


def rows_last(rank: int, axis: int) -> list[int]:
    """Return the permutation that makes an axis the last one."""
    return [*(k for k in range(rank) if k != axis), axis]


def _probe_shapes(
    inputs: Mapping[str, onnx.ValueInfoProto],
    axes: Mapping[str, int],
    shapes: Mapping[str, Shape],
    tokens: str,
    batch: int,
    count: int,
) -> dict[str, Shape]:
    """Return the shapes of the inputs for the probe."""
    probed = {}
    for name, value in inputs.items():
        dims = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        given = list(shapes.get(name, [dim if dim > 0 else batch for dim in dims]))
        if name in axes:
            given[axes[name]] = PROBE_PAST
        elif name == tokens:
            given[1] = count
        elif name in MASKS and len(dims) == 2:
            given = [batch, PROBE_PAST + count]
        elif name in POSITIONS:
            given = [batch, count] if len(dims) == 2 else [count]
        elif name not in shapes:
            continue
        probed[name] = tuple(given)
    return probed


class _Rewrite:
    """Rewrites the nodes of a decoder, as the module's docstring says.

    `probed` is the number of new tokens in the probe. The library's buffers have `capacity` rows, and it
    takes `count` new tokens.
    """

    def __init__(
        self,
        graph: onnx.GraphProto,
        nodes: Sequence[onnx.NodeProto],
        values: Mapping[str, Value],
        probed: int,
        capacity: int,
        count: int,
    ) -> None:
        self.nodes = list(nodes)
        self._graph = graph
        self._values = values
        self._probed, self._capacity, self._count = probed, capacity, count
        self._number = 0
        # The positions of the new tokens, (count). For each, which keys come later, (count, capacity).
        self._first: list[onnx.NodeProto] = []
        self._positions = self._op(self._first, "Add", PAST_LENGTH, self._constant(np.arange(count)))
        queries = self._op(self._first, "Reshape", self._positions, self._constant(np.array([count, 1])))
        keys = self._constant(np.arange(capacity).reshape(1, capacity))
        self._is_later = self._op(self._first, "Greater", keys, queries)

    def shorten_shape(self, name: str, axis: int, is_moved: bool) -> None:
        """Make the file read a past's shape as if the new rows would just fill the buffer."""
        ends = [self._constant(np.array([each])) for each in (0, self._capacity - self._count, axis)]
        past = self._rows_back(self._first, name, name, axis) if is_moved else name
        shorter = self._op(self._first, "Slice", past, *ends)
        for node in self.nodes:
            if node.op_type == "Shape" and node.input[0] == name:
                node.input[0] = shorter

    def write_rows(
        self, concats: Mapping[str, onnx.NodeProto], axes: Mapping[str, int], moved: Container[str]
    ) -> None:
        """Replace each Concat with a node that writes the new rows into the buffer. Rows of `moved` buffers
        are last."""
        for name, concat in concats.items():
            rows, axis = concat.input[1], axes[name]
            before: list[onnx.NodeProto] = []
            rank = self._values[rows].rank
            if name in moved:
                rows = self._op(before, "Transpose", rows, perm=rows_last(rank, axis))
            written_axis = rank - 1 if name in moved else axis
            shape = [self._count if k == written_axis else 1 for k in range(rank)]
            places = self._op(before, "Reshape", self._positions, self._constant(np.array(shape)))
            places = self._op(before, "Expand", places, self._op(before, "Shape", rows))
            buffer = self._op(before, "ScatterElements", name, places, rows, axis=written_axis)
            if name in moved:
                buffer = self._rows_back(before, name, buffer, axis)
            last = helper.make_node("Identity", [buffer], list(concat.output), name=concat.name)
            self._replace(concat, [*before, last])

    def _rows_back(self, nodes: list[onnx.NodeProto], name: str, buffer: str, axis: int) -> str:
        """Transpose a buffer whose rows are last to the axes that it has in the file."""
        order = np.argsort(rows_last(self._values[name].rank, axis)).tolist()
        return self._op(nodes, "Transpose", buffer, perm=order)

    def replace_positions(self) -> None:
        """Compute the positions of new tokens from `past_length`."""
        for node in list(self.nodes):
            if node.op_type == "Slice" and self._is_window(node):
                continue
            if self._probed == 1:
                self._replace_single(node)
                continue
            for place, name in enumerate(node.output):
                if name and self._are_positions(name):
                    self._replace_output(node, place)

    def mask_softmax(self, written: set[str]) -> int:
        """Mask the keys of later tokens and of empty rows in each attention over the cache.

        Return the number of attentions. Raises CacheNotInPlace.
        """
        found, tainted = 0, set(written)
        for node in list(self.nodes):
            if not tainted.intersection(node.input):
                continue
            tainted.update(node.output)
            value = self._values.get(node.input[0])
            is_attention = node.op_type == "Softmax" and value is not None
            if not is_attention or value is None or value.shape[-1] != PROBE_PAST + self._probed:
                continue
            axis = next((one.i for one in node.attribute if one.name == "axis"), -1)
            if axis not in (-1, value.rank - 1) or value.shape[-2] != self._probed:
                raise CacheNotInPlace(f"its attention has the shape {value.shape}, not (..., queries, keys)")
            lowest = np.finfo(value.dtype).min if value.dtype.startswith("float") else -1e30
            before: list[onnx.NodeProto] = []
            hidden = self._constant(np.array(lowest, helper.tensor_dtype_to_np_dtype(_type_of(value))))
            node.input[0] = self._op(before, "Where", self._is_later, hidden, node.input[0])
            self._replace(node, [*before, node])
            found += 1
        return found

    def derive(self, specs: Sequence[TensorSpec]) -> tuple[Derived, ...]:
        """Compute masks and positions, which were inputs, from `past_length`. Raises CacheNotInPlace."""
        derived = []
        for spec in specs:
            is_mask = spec.name in MASKS
            if len(spec.shape) not in ((2,) if is_mask else (1, 2)):
                raise CacheNotInPlace(f"its input '{spec.name}' has {len(spec.shape)} dimensions")
            shape: Shape = (spec.shape[0], self._count) if len(spec.shape) == 2 else (self._count,)
            value = self._positions
            if is_mask:
                keys = self._constant(np.arange(self._capacity).reshape(1, -1))
                ends = self._op(self._first, "Add", PAST_LENGTH, self._constant(np.array([self._count])))
                value = self._op(self._first, "Less", keys, ends)
                shape = (spec.shape[0], self._capacity)
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
            value = self._op(self._first, "Cast", value, to=kind)
            value = self._op(self._first, "Expand", value, self._constant(np.array(shape)))
            self._first.append(helper.make_node("Identity", [value], [spec.name]))
            derived.append(Derived(spec.name, spec.dtype, shape, is_mask))
        self.nodes = [*self._first, *self.nodes]
        return tuple(derived)

    def _are_positions(self, name: str) -> bool:
        """Return whether a value holds the positions of the new tokens."""
        value = self._values.get(name)
        wanted = np.arange(PROBE_PAST, PROBE_PAST + self._probed)
        return (
            value is not None
            and value.constant is not None
            and value.constant.dtype.kind in "iu"
            and np.array_equal(value.constant.ravel(), wanted)
        )

    def _replace_output(self, node: onnx.NodeProto, place: int) -> None:
        """Replace one output of a node with the positions of the new tokens."""
        name = node.output[place]
        made: list[onnx.NodeProto] = []
        value = self._like(made, self._values[name])
        made.append(helper.make_node("Identity", [value], [name]))
        node.output[place] = f"{_PREFIX}unused.{name}"
        self._replace(node, [node, *made])

    def _replace_single(self, node: onnx.NodeProto) -> None:
        """Replace a single new token's position. It equals the past's length: only its reader differs."""
        place = {"Gather": 1, "Cast": 0}.get(node.op_type)
        if place is None or not self._are_positions(node.input[place]):
            return
        kind = next((one.i for one in node.attribute if one.name == "to"), onnx.TensorProto.FLOAT)
        data = self._values[node.input[0]]
        if kind not in _FLOATS or (node.op_type == "Gather" and data.shape[0] <= PROBE_PAST):
            return
        before: list[onnx.NodeProto] = []
        node.input[place] = self._like(before, self._values[node.input[place]])
        self._replace(node, [*before, node])

    def _is_window(self, node: onnx.NodeProto) -> bool:
        """If a Slice selects the new tokens' positions, replace it with a Gather. Return whether it does."""
        given = [self._values.get(name) if name else None for name in node.input]
        known = [None if one is None else one.constant for one in given[1:]]
        starts, ends, axes, steps = (*known, None, None)[:4]
        data = given[0]
        if data is None or starts is None or ends is None:
            return False
        numbers = list(range(len(starts))) if axes is None else [int(axis) % data.rank for axis in axes]
        for place, axis in enumerate(numbers):
            step = 1 if steps is None else int(steps[place])
            window = slice(int(starts[place]), int(ends[place])).indices(data.shape[axis])
            if step == 1 and window[:2] == (PROBE_PAST, PROBE_PAST + self._probed):
                self._gather_window(node, place, numbers)
                return True
        return False

    def _gather_window(self, node: onnx.NodeProto, place: int, axes: Sequence[int]) -> None:
        before: list[onnx.NodeProto] = []
        data = node.input[0]
        others = [k for k in range(len(axes)) if k != place]
        if others:
            chosen = self._constant(np.array(others))
            parts = [self._op(before, "Gather", name, chosen) for name in node.input[1:3]]
            kept = self._constant(np.array([axes[k] for k in others]))
            data = self._op(before, "Slice", data, *parts, kept)
        gather = helper.make_node("Gather", [data, self._positions], list(node.output), axis=axes[place])
        self._replace(node, [*before, gather])

    def _like(self, nodes: list[onnx.NodeProto], value: Value) -> str:
        """Return the positions of the new tokens with the type and the axes of a value."""
        shape = [self._count if extent == self._probed and extent > 1 else extent for extent in value.shape]
        cast = self._op(nodes, "Cast", self._positions, to=_type_of(value))
        return self._op(nodes, "Reshape", cast, self._constant(np.array(shape, np.int64)))

    def _replace(self, node: onnx.NodeProto, nodes: Sequence[onnx.NodeProto]) -> None:
        at = next(index for index, one in enumerate(self.nodes) if one is node)
        self.nodes[at : at + 1] = nodes

    def _op(self, nodes: list[onnx.NodeProto], kind: str, *inputs: str, **attributes: Any) -> str:
        self._number += 1
        name = f"{_PREFIX}{kind.lower()}{self._number}"
        nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def _constant(self, array: Array) -> str:
        self._number += 1
        name = f"{_PREFIX}constant{self._number}"
        self._graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
        return name


def _type_of(value: Value) -> int:
    return int(value.onnx_type().tensor_type.elem_type)
