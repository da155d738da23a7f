"""Converters of TFLite's recurrent operators, unrolled step by step.

LiteRT keeps their states between runs. A library doesn't: states begin with zeros, as in LiteRT's first run,
or with the model's input for the state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from compiler.importing.values import UnsupportedOperator

# Takes the importer and the operator.
Convert = Callable[[Any, Any], Any]
_NORM_EPSILON = 1e-8
# The gates in the order of their operands.
_INPUT, _FORGET, _CELL, _OUTPUT = range(4)
# The positions of the normalization weights of an LSTM with one direction.
_NORMS = (20, 21, 22, 23)


def _operand(importer: Any, tensors: Sequence[Any], place: int) -> Any:
    """Return an operand as numbers; None if it was left out."""
    given = place < len(tensors) and tensors[place].tensor_idx != -1
    return importer.real(tensors[place]) if given else None


def _state(importer: Any, tensor: Any) -> Any:
    """Return a state's initial value."""
    if importer.has_expr(tensor.tensor_idx):
        return importer.real(tensor)
    return relax.const(np.zeros(importer.declared_shape(tensor)), "float32")


def _times(x: Any, weight: Any) -> Any:
    """Multiply rows by the transpose of weights."""
    return relax.op.matmul(x, relax.op.permute_dims(weight))


def _steps(importer: Any, data: Any, axis: int) -> list[Any]:
    """Return the parts of a sequence."""
    count = int(data.ty.shape.values[axis])
    parts = [relax.op.strided_slice(data, [axis], [step], [step + 1]) for step in range(count)]
    return [importer.bb.emit(relax.op.squeeze(part, [axis])) for part in parts]


def _run(
    importer: Any, steps: Sequence[Any], cell: Callable[[Any], Any], axis: int, *, backwards: bool = False
) -> Any:
    """Return the results of a cell for each step, joined along an axis."""
    found = [cell(step) for step in (reversed(steps) if backwards else steps)]
    return importer.bb.emit(relax.op.stack(found[::-1] if backwards else found, axis=axis))


@dataclass
class _Lstm:
    """A cell; tensors that were left out are None. `state` is passed to the next step."""

    importer: Any
    data: Sequence[Any]
    recurrent: Sequence[Any]
    peepholes: Sequence[Any]
    biases: Sequence[Any]
    norms: Sequence[Any]
    projection: Any
    projection_bias: Any
    state: Any
    cell: Any
    activation: int
    cell_clip: float
    projection_clip: float

    def _gate(self, gate: int, x: Any) -> Any:
        total = relax.op.add(_times(x, self.data[gate]), _times(self.state, self.recurrent[gate]))
        if gate != _CELL and (peephole := self.peepholes[min(gate, 2)]) is not None:
            total = relax.op.add(total, relax.op.multiply(self.cell, peephole))
        if (weight := self.norms[gate]) is not None:
            total = self.importer.bb.emit(total)
            centred = self.importer.bb.emit(relax.op.subtract(total, relax.op.mean(total, -1, True)))
            variance = relax.op.mean(relax.op.multiply(centred, centred), -1, True)
            spread = relax.op.sqrt(relax.op.add(variance, relax.const(_NORM_EPSILON, "float32")))
            total = relax.op.multiply(relax.op.divide(centred, spread), weight)
        if (bias := self.biases[gate]) is not None:
            total = relax.op.add(total, bias)
        total = self.importer.bb.emit(total)
        return self.importer.activated(total, self.activation) if gate == _CELL else relax.op.sigmoid(total)

    def step(self, x: Any) -> Any:
        emit = self.importer.bb.emit
        forget = emit(self._gate(_FORGET, x))
        if self.data[_INPUT] is None:
            added = relax.op.subtract(relax.const(1, "float32"), forget)
        else:
            added = self._gate(_INPUT, x)
        new = relax.op.multiply(added, self._gate(_CELL, x))
        self.cell = emit(relax.op.add(relax.op.multiply(forget, self.cell), new))
        if self.cell_clip > 0:
            self.cell = emit(relax.op.clip(self.cell, -self.cell_clip, self.cell_clip))
        result = relax.op.multiply(
            self._gate(_OUTPUT, x), self.importer.activated(self.cell, self.activation)
        )
        if self.projection is not None:
            result = _times(result, self.projection)
            if self.projection_bias is not None:
                result = relax.op.add(result, self.projection_bias)
            if self.projection_clip > 0:
                result = relax.op.clip(result, -self.projection_clip, self.projection_clip)
        self.state = emit(result)
        return self.state


def _lstm_cell(
    importer: Any,
    tensors: Sequence[Any],
    first: int,
    states: Sequence[Any],
    options: Any,
    norms: Sequence[int] = (),
) -> _Lstm:
    """Return the cell whose weights begin at a position; `states` are its output and its cell, `norms` the
    positions of the weights that normalize its gates, if it may have any."""

    def some(*places: int) -> list[Any]:
        return [_operand(importer, tensors, place) for place in places]

    state, cell = (_state(importer, tensor) for tensor in states)
    projection, projection_bias = some(first + 15, first + 16)
    return _Lstm(
        importer,
        some(*range(first, first + 4)),
        some(*range(first + 4, first + 8)),
        some(*range(first + 8, first + 11)),
        some(*range(first + 11, first + 15)),
        some(*norms) or [None] * 4,
        projection,
        projection_bias,
        state,
        cell,
        options.FusedActivationFunction(),
        options.CellClip(),
        options.ProjClip(),
    )


def _lstm(importer: Any, op: Any) -> Any:
    tensors = importer.get_input_tensors(op)
    if len(tensors) < 20:
        raise UnsupportedOperator("its kernel BASIC isn't supported: convert it to the kernel FULL")
    options = importer.options(op, "LSTMOptions")
    cell = _lstm_cell(importer, tensors, 1, tensors[18:20], options, _NORMS)
    return cell.step(importer.real(tensors[0]))


def _lstm_sequence(importer: Any, op: Any) -> Any:
    tensors = importer.get_input_tensors(op)
    options = importer.options(op, "UnidirectionalSequenceLSTMOptions")
    axis = 0 if options.TimeMajor() else 1
    cell = _lstm_cell(importer, tensors, 1, tensors[18:20], options, _NORMS)
    return _run(importer, _steps(importer, importer.real(tensors[0]), axis), cell.step, axis)


def _lstm_both_ways(importer: Any, op: Any) -> Any:
    tensors = importer.get_input_tensors(op)
    options = importer.options(op, "BidirectionalSequenceLSTMOptions")
    _refuse_auxiliary(tensors[39:])
    axis = 0 if options.TimeMajor() else 1
    steps = _steps(importer, importer.real(tensors[0]), axis)
    ahead = _lstm_cell(importer, tensors, 1, tensors[35:37], options)
    back = _lstm_cell(importer, tensors, 18, tensors[37:39], options)
    return _merged(importer, steps, ahead.step, back.step, axis, options.MergeOutputs())


def _refuse_auxiliary(tensors: Sequence[Any]) -> None:
    if any(tensor.tensor_idx != -1 for tensor in tensors):
        raise UnsupportedOperator("its auxiliary input isn't supported: join it to the input")


def _merged(
    importer: Any,
    steps: Sequence[Any],
    ahead: Callable[[Any], Any],
    back: Callable[[Any], Any],
    axis: int,
    is_one: bool,
) -> Any:
    found = [_run(importer, steps, ahead, axis), _run(importer, steps, back, axis, backwards=True)]
    return relax.op.concat(found, axis=2) if is_one else relax.Tuple(found)


def _rnn_cell(importer: Any, tensors: Sequence[Any], activation: int) -> Callable[[Any], Any]:
    """Return the step of a cell: activation(W x + R h + b)."""
    weight, recurrent = (importer.real(tensor) for tensor in tensors[:2])
    bias, state = _operand(importer, tensors, 2), _state(importer, tensors[3])

    def step(x: Any) -> Any:
        nonlocal state
        total = relax.op.add(_times(x, weight), _times(state, recurrent))
        total = total if bias is None else relax.op.add(total, bias)
        state = importer.bb.emit(importer.activated(importer.bb.emit(total), activation))
        return state

    return step


def _rnn(importer: Any, op: Any) -> Any:
    tensors = importer.get_input_tensors(op)
    activation = importer.options(op, "RNNOptions").FusedActivationFunction()
    return _rnn_cell(importer, tensors[1:], activation)(importer.real(tensors[0]))


def _rnn_sequence(importer: Any, op: Any) -> Any:
    tensors = importer.get_input_tensors(op)
    options = importer.options(op, "SequenceRNNOptions")
    axis = 0 if options.TimeMajor() else 1
    cell = _rnn_cell(importer, tensors[1:], options.FusedActivationFunction())
    return _run(importer, _steps(importer, importer.real(tensors[0]), axis), cell, axis)


def _rnn_both_ways(importer: Any, op: Any) -> Any:
    tensors = importer.get_input_tensors(op)
    options = importer.options(op, "BidirectionalSequenceRNNOptions")
    _refuse_auxiliary(tensors[9:])
    axis, activation = 0 if options.TimeMajor() else 1, options.FusedActivationFunction()
    steps = _steps(importer, importer.real(tensors[0]), axis)
    ahead, back = (_rnn_cell(importer, part, activation) for part in (tensors[1:5], tensors[5:9]))
    return _merged(importer, steps, ahead, back, axis, options.MergeOutputs())


def _svdf(importer: Any, op: Any) -> Any:
    """Shift the memory of every filter by one step, append the filtered input, and multiply the memory by
    weights.

    memory: (batch, filters, steps), weights of time: (filters, steps)
    """
    tensors = importer.get_input_tensors(op)
    options = importer.options(op, "SVDFOptions")
    emit = importer.bb.emit
    batch, (filters, memory) = importer.declared_shape(tensors[0])[0], importer.declared_shape(tensors[2])
    feature = emit(_times(importer.real(tensors[0]), importer.real(tensors[1])))
    state = relax.op.reshape(_state(importer, tensors[4]), [batch, filters, memory])
    kept = relax.op.strided_slice(emit(state), [2], [1], [memory])
    remembered = [relax.op.reshape(feature, [batch, filters, 1])]
    remembered = [emit(kept), *remembered] if memory > 1 else remembered
    weighted = relax.op.multiply(relax.op.concat(remembered, axis=2), importer.real(tensors[2]))
    units = filters // options.Rank()
    result = relax.op.sum(relax.op.reshape(weighted, [batch, units, options.Rank() * memory]), -1)
    if (bias := _operand(importer, tensors, 3)) is not None:
        result = relax.op.add(result, bias)
    return importer.activated(emit(result), options.FusedActivationFunction())


CONVERTERS: Mapping[str, Convert] = {
    "BIDIRECTIONAL_SEQUENCE_LSTM": _lstm_both_ways,
    "BIDIRECTIONAL_SEQUENCE_RNN": _rnn_both_ways,
    "LSTM": _lstm,
    "RNN": _rnn,
    "SVDF": _svdf,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": _lstm_sequence,
    "UNIDIRECTIONAL_SEQUENCE_RNN": _rnn_sequence,
}
