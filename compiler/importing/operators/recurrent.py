"""Recurrent layers, unrolled over their sequence, whose length is static.

The inputs of all steps are multiplied at once. Only the products with the state are computed step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from compiler.importing.onnx_graph import Converter, Graph
from compiler.importing.operators.control import row, rows, stack
from compiler.importing.operators.quantized import cast
from compiler.importing.values import Node, UnsupportedOperator, Value

Activation = Callable[[Value], Value]
# Activations whose attributes have different defaults than the operators of the same name.
_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "LeakyRelu": {"alpha": 0.01},
    "ThresholdedRelu": {"alpha": 1.0},
    "Elu": {"alpha": 1.0},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
}
_PLAIN = ("Relu", "Tanh", "Sigmoid", "Softsign", "Softplus")


@dataclass(frozen=True)
class _Layer:
    """The operands of one direction of a layer of any of the three kinds, the sequence first."""

    graph: Graph
    node: Node
    direction: int
    steps: int
    hidden: int
    activations: Sequence[Activation]
    lengths: Value | None

    def operand(self, position: int) -> Value | None:
        """Return this direction's part of an input that has one for each direction."""
        value = self.node.optional(position)
        return None if value is None else row(self.graph, value, self.direction)

    def clipped(self, value: Value) -> Value:
        bound = self.node.attributes.get("clip")
        if bound is None:
            return value
        low, high = (np.array(sign * bound, value.dtype) for sign in (-1, 1))
        return self.graph.op("Clip", value, low, high)

    def gates(
        self, sequence: Value, count: int
    ) -> tuple[list[Value], list[Value], Value, list[Value] | None]:
        """Return the product of each step's input with the weights of all gates. Also return each gate's
        transposed weights of the state and its two biases, None without biases."""
        graph = self.graph
        weights, recurrence = self.operand(1), self.operand(2)
        if weights is None or recurrence is None:
            raise UnsupportedOperator("its weights are missing")
        product = graph.op("MatMul", sequence, graph.op("Transpose", weights, perm=[1, 0]))
        products = rows(graph, product)
        transposed = graph.op("Transpose", recurrence, perm=[1, 0])
        biases = self.operand(3)
        parts = None if biases is None else self.split(biases, 2 * count, axis=0)
        return products, self.split(transposed, count, axis=1), transposed, parts

    def split(self, value: Value, count: int, axis: int) -> list[Value]:
        """Return the parts of each gate as slices, which are fused with their consumers."""
        starts = np.arange(count) * self.hidden
        return [
            self.graph.op(
                "Slice", value, *(np.array([number]) for number in (start, start + self.hidden, axis))
            )
            for start in starts
        ]

    def advanced(self, step: int, fresh: Value, before: Value) -> Value:
        """Return the state after a step. The state of a finished sequence doesn't change."""
        if self.lengths is None:
            return fresh
        goes_on = self.graph.op("Greater", self.lengths, np.int64(step))
        return self.graph.op("Where", goes_on, fresh, before)

    def state(self, position: int, batch: int, dtype: str) -> Value:
        value = self.operand(position)
        return self.graph.value(np.zeros((batch, self.hidden), dtype)) if value is None else value


def _rnn(layer: _Layer, sequence: Value) -> tuple[list[Value], list[Value]]:
    """H' = f(X W^T + H R^T + Wb + Rb)"""
    graph = layer.graph
    (activate,) = layer.activations
    products, _, recurrence, biases = layer.gates(sequence, 1)
    state = layer.state(5, sequence.shape[1], sequence.dtype)
    states = []
    for step, product in enumerate(products):
        total = graph.op("Add", product, graph.op("MatMul", state, recurrence))
        for bias in biases or ():
            total = graph.op("Add", total, bias)
        state = layer.advanced(step, activate(layer.clipped(total)), state)
        states.append(state)
    return states, [state]


def _gru(layer: _Layer, sequence: Value) -> tuple[list[Value], list[Value]]:
    """z = f(X Wz + H Rz + b), r = f(X Wr + H Rr + b), H' = (1 - z) g(X Wh + (r H) Rh + b) + z H"""
    graph = layer.graph
    f, g = layer.activations
    products, recurrences, _, biases = layer.gates(sequence, 3)
    state = layer.state(5, sequence.shape[1], sequence.dtype)
    one = np.array(1, sequence.dtype)
    after = bool(layer.node.attributes.get("linear_before_reset", 0))

    def add(value: Value, *positions: int) -> Value:
        for position in positions if biases is not None else ():
            assert biases is not None
            value = graph.op("Add", value, biases[position])
        return value

    both = graph.op("Concat", *recurrences[:2], axis=1)
    states = []
    for step, product in enumerate(products):
        xz, xr, xh = layer.split(product, 3, axis=1)
        hz, hr = layer.split(graph.op("MatMul", state, both), 2, axis=1)
        update = f(layer.clipped(add(graph.op("Add", xz, hz), 0, 3)))
        reset = f(layer.clipped(add(graph.op("Add", xr, hr), 1, 4)))
        if after:
            kept = graph.op("Mul", reset, add(graph.op("MatMul", state, recurrences[2]), 5))
            fresh = add(graph.op("Add", xh, kept), 2)
        else:
            kept = graph.op("MatMul", graph.op("Mul", reset, state), recurrences[2])
            fresh = add(graph.op("Add", xh, kept), 2, 5)
        fresh = g(layer.clipped(fresh))
        left = graph.op("Mul", graph.op("Sub", one, update), fresh)
        state = layer.advanced(step, graph.op("Add", left, graph.op("Mul", update, state)), state)
        states.append(state)
    return states, [state]


def _lstm(layer: _Layer, sequence: Value) -> tuple[list[Value], list[Value]]:
    """i, o, f = s(X W + H R + b + P C), C' = f C + i t(X Wc + H Rc + bc), H' = o h(C')"""
    graph = layer.graph
    f, g, h = layer.activations
    products, _, recurrence, biases = layer.gates(sequence, 4)
    batch = sequence.shape[1]
    state, cell = (layer.state(position, batch, sequence.dtype) for position in (5, 6))
    peepholes = layer.operand(7)
    peeps = None if peepholes is None else layer.split(peepholes, 3, axis=0)
    all_biases = None
    if biases is not None:
        first, second = (graph.op("Concat", *part, axis=0) for part in (biases[:4], biases[4:]))
        all_biases = graph.op("Add", first, second)
    one = np.array(1, sequence.dtype)
    coupled = bool(layer.node.attributes.get("input_forget", 0))

    def peep(value: Value, position: int, seen: Value) -> Value:
        if peeps is None:
            return value
        return graph.op("Add", value, graph.op("Mul", peeps[position], seen))

    states = []
    for step, product in enumerate(products):
        total = graph.op("Add", product, graph.op("MatMul", state, recurrence))
        if all_biases is not None:
            total = graph.op("Add", total, all_biases)
        i, o, forget, c = layer.split(total, 4, axis=1)
        i = f(layer.clipped(peep(i, 0, cell)))
        forget = graph.op("Sub", one, i) if coupled else f(layer.clipped(peep(forget, 2, cell)))
        c = g(layer.clipped(c))
        next_cell = graph.op("Add", graph.op("Mul", forget, cell), graph.op("Mul", i, c))
        o = f(layer.clipped(peep(o, 1, next_cell)))
        state = layer.advanced(step, graph.op("Mul", o, h(next_cell)), state)
        cell = layer.advanced(step, next_cell, cell)
        states.append(state)
    return states, [state, cell]


Cell = Callable[[_Layer, Value], tuple[list[Value], list[Value]]]


def _layer(cell: Cell, names: Sequence[str]) -> Converter:
    """Return the converter of a layer with these activations by default."""

    def convert(graph: Graph, node: Node) -> Sequence[Value]:
        sequence = node.input(0)
        batch_first = bool(node.attributes.get("layout", 0))
        if batch_first:
            sequence = graph.op("Transpose", sequence, perm=[1, 0, 2])
            node = _with_states_first(graph, node)
        steps = sequence.shape[0]
        lengths = node.optional(4)
        if lengths is not None and lengths.constant is not None and (lengths.constant == steps).all():
            lengths = None
        column = None
        if lengths is not None:
            column = graph.op("Reshape", cast(graph, lengths, "int64"), np.array([-1, 1]))
        direction = node.attributes.get("direction", "forward")
        directions = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
        outputs, finals = [], []
        for number, backwards in enumerate(directions):
            activations = _activations(graph, node, names, number)
            hidden = int(node.attributes["hidden_size"])
            layer = _Layer(graph, node, number, steps, hidden, activations, column)
            states, final = cell(layer, _turned(graph, sequence, lengths) if backwards else sequence)
            every_state = stack(graph, states, axis=0)
            outputs.append(_turned(graph, every_state, lengths) if backwards else every_state)
            finals.append(final)
        # For every step, then for every direction.
        every = stack(graph, outputs, axis=1)
        if column is not None:
            has_ended = graph.op("GreaterOrEqual", np.arange(steps).reshape(-1, 1, 1, 1), column)
            every = graph.op("Where", has_ended, np.array(0, sequence.dtype), every)
        last = [stack(graph, list(part), axis=0) for part in zip(*finals, strict=True)]
        if column is not None:
            # In ONNX Runtime, the states of a sequence without steps are zero, even if initial states are
            # given.
            is_empty = graph.op("Equal", column, np.int64(0))
            last = [graph.op("Where", is_empty, np.array(0, part.dtype), part) for part in last]
        if batch_first:
            every = graph.op("Transpose", every, perm=[2, 0, 1, 3])
            last = [graph.op("Transpose", part, perm=[1, 0, 2]) for part in last]
        return [every, *last]

    return convert


def _with_states_first(graph: Graph, node: Node) -> Node:
    """Return the node with its states ordered by direction, then by element of the batch."""
    inputs = [
        graph.op("Transpose", value, perm=[1, 0, 2]) if position in (5, 6) and value is not None else value
        for position, value in enumerate(node.inputs)
    ]
    return replace(node, inputs=tuple(inputs))


def _turned(graph: Graph, sequence: Value, lengths: Value | None) -> Value:
    """Reverse the steps of each sequence, up to its length."""
    if lengths is not None:
        return graph.op("ReverseSequence", sequence, cast(graph, lengths, "int64"), time_axis=0, batch_axis=1)
    return graph.op("Gather", sequence, np.arange(sequence.shape[0])[::-1].copy(), axis=0)


def _activations(graph: Graph, node: Node, names: Sequence[str], direction: int) -> list[Activation]:
    """Return the activations of a direction. The parameters are in the order of the activations that have
    parameters."""
    listed = [str(name) for name in _texts(node.attributes.get("activations", []))]
    every = listed or [*names] * 2
    parameters = {key: list(node.attributes.get(f"activation_{key}", [])) for key in ("alpha", "beta")}
    made: list[Activation] = []
    for name in every:
        known = {each.lower(): each for each in (*_PLAIN, *_DEFAULTS, "Affine", "ScaledTanh")}
        kind = known.get(name.lower())
        if kind is None:
            raise UnsupportedOperator(f"activation {name} isn't known")
        values: dict[str, float] = {}
        defaults = _DEFAULTS.get(
            kind, {"alpha": 1.0, "beta": 0.0} if kind in ("Affine", "ScaledTanh") else {}
        )
        for key, default in defaults.items():
            values[key] = parameters[key].pop(0) if parameters[key] else default
        made.append(_activation(graph, kind, values))
    return made[direction * len(names) : (direction + 1) * len(names)]


def _texts(values: Sequence[Any]) -> list[str]:
    return [value.decode() if isinstance(value, bytes) else str(value) for value in values]


def _activation(graph: Graph, kind: str, values: Mapping[str, Any]) -> Activation:
    def scaled(value: Value, factor: float) -> Value:
        return graph.op("Mul", value, np.array(factor, value.dtype))

    if kind == "Affine":
        return lambda value: graph.op(
            "Add", scaled(value, values["alpha"]), np.array(values["beta"], value.dtype)
        )
    if kind == "ScaledTanh":
        return lambda value: scaled(graph.op("Tanh", scaled(value, values["beta"])), values["alpha"])
    return lambda value: graph.op(kind, value, **values)


CONVERTERS: Mapping[tuple[str, str], Converter] = {
    ("", "RNN"): _layer(_rnn, ["Tanh"]),
    ("", "GRU"): _layer(_gru, ["Sigmoid", "Tanh"]),
    ("", "LSTM"): _layer(_lstm, ["Sigmoid", "Tanh", "Tanh"]),
}
