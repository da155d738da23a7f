"""Damaged TFLite files are refused in one clear message, without words of Python, NumPy or FlatBuffers."""

from __future__ import annotations

import importlib
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from compiler.importing.formats.tflite_model import read
from compiler.importing.spec import ModelError
from tests.tflite_models import Quantization, TfliteBuilder

FOREIGN = re.compile(
    r"unpack_from|bad number|buffer is smaller|out of range|zip\(\)|numpy|Error\b|codec|<class|argument|Relax"
)
FILES = 300
EXTREMES = (-1, -2, 0, 1, 127, 255, 2**16, 2**30, 2**31 - 1, -(2**31))


def built() -> bytes:
    """A sum of two products of bytes, with constants, attributes and quantized tensors."""
    builder = TfliteBuilder()
    scale = Quantization(0.1, 3)
    x = builder.input((2, 4), "int8", scale)
    first, second = (builder.tensor((2, 3), "int8", quantization=scale) for _ in range(2))
    weight = builder.constant(np.ones((3, 4), np.int8), Quantization([0.1, 0.2, 0.3], [0, 0, 0]))
    builder.op("FULLY_CONNECTED", [x, weight, -1], [first], "FullyConnectedOptions")
    builder.op("ADD", [first, first], [second], "AddOptions")
    return builder.model([second])


def changed(change: Callable[[Any, Any], object]) -> bytes:
    """Return the model after a change of its tables. `change` takes the model and its graph."""
    schema = TfliteBuilder().schema
    model = schema.ModelT.InitFromPackedBuf(built(), 0)
    change(model, model.subgraphs[0])
    builder = importlib.import_module("flatbuffers").Builder(0)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    return bytes(builder.Output())


def setting(**fields: Any) -> Callable[[Any], object]:
    return lambda table: vars(table).update(fields)


def tensor(number: int, **fields: Any) -> Callable[[Any, Any], object]:
    return lambda _, graph: setting(**fields)(graph.tensors[number])


def scales(number: int, **fields: Any) -> Callable[[Any, Any], object]:
    return lambda _, graph: setting(**fields)(graph.tensors[number].quantization)


def operator(number: int, **fields: Any) -> Callable[[Any, Any], object]:
    return lambda _, graph: setting(**fields)(graph.operators[number])


DAMAGED: dict[str, tuple[Callable[[Any, Any], object], str]] = {
    "no graph": (lambda model, _: setting(subgraphs=[])(model), "it has no graph"),
    "another version": (lambda model, _: setting(version=1)(model), "it has version 1 instead of 3"),
    "a negative dimension": (tensor(0, shape=[-1, 4]), r"'t0' .* negative dimension in its shape \[-1, 4\]"),
    "a huge tensor": (tensor(0, shape=[2**31 - 1, 4]), r"'t0' .* the limit is 4294967296"),
    "an unknown type": (tensor(1, type=99), "'t1' has the unknown element type 99"),
    "no such buffer": (tensor(3, buffer=7), "'t3' names buffer 7, and there are 2"),
    "a short buffer": (tensor(3, shape=[3, 5]), r"'t3' of shape \[3, 5\] .* 15 bytes, and its buffer has 12"),
    "a name": (tensor(0, name=b"\xff"), "the name of tensor 0 isn't UTF-8"),
    "a scale": (scales(0, scale=np.array([np.nan], np.float32)), "'t0' has a scale that is negative or not"),
    "no scales": (scales(0, scale=np.zeros(0, np.float32)), "'t0' has an empty list of scales"),
    "zero points": (scales(0, zeroPoint=np.zeros(2, np.int64)), "'t0' has 1 scales and 2 zero points"),
    "a large zero point": (scales(0, zeroPoint=np.array([2**31])), "'t0' has a zero point of more than 32"),
    "an axis": (scales(3, quantizedDimension=1), r"'t3' of shape \[3, 4\] has 3 scales along axis 1"),
    "no such operator": (operator(0, opcodeIndex=5), "operator 0 has a code that the file doesn't list"),
    "no such tensor": (operator(1, inputs=[1, 9]), r"operator 1 \(ADD\) names tensor 9, and there are 4"),
    "a later tensor": (operator(0, inputs=[2, 3, -1]), r"\(FULLY_CONNECTED\) reads tensor 't2' before it is"),
    "written twice": (operator(1, outputs=[1]), r"operator 1 \(ADD\) computes tensor 't1', which is known"),
    "no attributes": (
        operator(0, builtinOptions=None, builtinOptionsType=0),
        r"operator FULLY_CONNECTED .* its attributes \(FullyConnectedOptions\) are missing",
    ),
    "attributes of another kind": (
        operator(0, builtinOptionsType=11),
        r"operator FULLY_CONNECTED .* its attributes \(FullyConnectedOptions\) are missing",
    ),
    "an output": (lambda _, graph: setting(outputs=[1, 8])(graph), "the list of outputs names tensor 8"),
    "no outputs": (lambda _, graph: setting(outputs=[])(graph), "it has no outputs"),
    "an output of nothing": (lambda _, graph: graph.operators.pop(), "nothing computes its output 't2'"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_table_is_named(name: str) -> None:
    change, message = DAMAGED[name]
    with pytest.raises(ModelError, match=message) as raised:
        read(changed(change), {}).to_relax()
    assert not FOREIGN.search(str(raised.value))


def test_other_graphs_may_have_equal_names_and_no_outputs() -> None:
    """A graph that CALL_ONCE calls has no outputs."""

    def add_graph(model: Any, graph: Any) -> None:
        other = TfliteBuilder().schema.SubGraphT()
        other.tensors, other.inputs, other.outputs, other.operators = [graph.tensors[0]] * 2, [0, 1], [], []
        model.subgraphs.append(other)

    read(changed(add_graph), {}).to_relax()


def test_files_with_changed_bytes_are_read_or_refused_clearly() -> None:
    rng, whole, messages = random.Random(0), built(), list[str]()
    for number in range(FILES):
        data = bytearray(whole)
        if number % 3 == 0:
            del data[rng.randrange(8, len(data)) :]
        elif number % 3 == 1:
            for _ in range(rng.choice((1, 2, 8))):
                data[rng.randrange(8, len(data))] = rng.randrange(256)
        else:
            at = rng.randrange(8, len(data) - 4) // 4 * 4
            data[at : at + 4] = rng.choice(EXTREMES).to_bytes(4, "little", signed=True)
        try:
            read(bytes(data), {}).to_relax()
        except ModelError as error:
            messages.append(str(error))
    assert [message for message in messages if FOREIGN.search(message)] == []
    assert len({*messages}) > 10
