"""Generate invalid ONNX files: small models with defects in their graph, or with changed bytes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from random import Random
from typing import TypeAlias

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from tests.fuzz.mutations import FLOATS, NUMBERS, mutated
from tests.onnx_models import MODELS

Model: TypeAlias = onnx.ModelProto
Defect: TypeAlias = Callable[[Model, Random], None]
COUNTS = (1, 1, 2, 3)
EXTENTS = (0, 1, 2, 3, -1, 2**16, 2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**63))
AXES = (-(2**63), -1000, -5, -1, 0, 1, 4, 64, 1000, 2**31, 2**63 - 1)
NAMES = ("", "input", "w0", "a.b", "../x", "x" * 3000, "n\0l", "ü€", "\U0001f600", "%s%n", "main")
_SEEDS: tuple[bytes, ...] = tuple(make() for make in MODELS.values())


def files(rng: Random) -> Iterator[bytes]:
    """Yield files without end: half are models with defects, half have changed bytes."""
    while True:
        data = rng.choice(_SEEDS)
        if rng.random() < 0.5:
            yield defective(data, rng)
        else:
            yield mutated(data, rng.choice(_SEEDS), rng)


def defective(data: bytes, rng: Random) -> bytes:
    """Return the model after one to three changes of its graph."""
    model = onnx.load_from_string(data)
    for _ in range(rng.choice(COUNTS)):
        rng.choice(DEFECTS)(model, rng)
    return bytes(model.SerializeToString())


@functools.cache
def operators() -> tuple[str, ...]:
    """Return the names of every operator of ONNX, and of some that don't exist."""
    known = {schema.name for schema in onnx.defs.get_all_schemas_with_history()}
    return (*sorted(known), "NoSuchOperator", "", "Fused")


def _node(model: Model, rng: Random) -> onnx.NodeProto:
    if not model.graph.node:
        model.graph.node.append(helper.make_node("Relu", ["input"], ["y"]))
    return model.graph.node[rng.randrange(len(model.graph.node))]


def _weight(model: Model, rng: Random) -> TensorProto:
    if not model.graph.initializer:
        model.graph.initializer.append(numpy_helper.from_array(np.zeros((2, 3), np.float32), "w0"))
    return model.graph.initializer[rng.randrange(len(model.graph.initializer))]


def _name(model: Model, rng: Random) -> str:
    """Return the name of a value in the graph, or an unknown name."""
    names = [name for node in model.graph.node for name in (*node.input, *node.output)]
    return rng.choice([*names, *NAMES])


def _change_operator(model: Model, rng: Random) -> None:
    _node(model, rng).op_type = rng.choice(operators())


def _change_domain(model: Model, rng: Random) -> None:
    node = _node(model, rng)
    node.domain = rng.choice(("com.microsoft", "ai.onnx.ml", "ai.onnx", "own"))
    model.opset_import.append(helper.make_opsetid(node.domain, rng.choice((1, 17, 2**40))))


def _change_input(model: Model, rng: Random) -> None:
    node = _node(model, rng)
    if node.input and rng.random() < 0.7:
        node.input[rng.randrange(len(node.input))] = _name(model, rng)
    else:
        node.input.append(_name(model, rng))


def _remove_inputs(model: Model, rng: Random) -> None:
    node = _node(model, rng)
    del node.input[rng.randint(0, len(node.input)) :]


def _change_output(model: Model, rng: Random) -> None:
    node = _node(model, rng)
    if node.output:
        node.output[rng.randrange(len(node.output))] = _name(model, rng)
    if rng.random() < 0.3:
        node.output.append(_name(model, rng))


def _read_own_output(model: Model, rng: Random) -> None:
    node = _node(model, rng)
    if node.input and node.output:
        node.input[0] = node.output[0]


def _remove_node(model: Model, rng: Random) -> None:
    if model.graph.node:
        del model.graph.node[rng.randrange(len(model.graph.node))]


def _shuffle_nodes(model: Model, rng: Random) -> None:
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in model.graph.node]
    rng.shuffle(nodes)
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _remove_weight(model: Model, rng: Random) -> None:
    if model.graph.initializer:
        del model.graph.initializer[rng.randrange(len(model.graph.initializer))]


def _change_weight_shape(model: Model, rng: Random) -> None:
    weight = _weight(model, rng)
    if weight.dims and rng.random() < 0.7:
        weight.dims[rng.randrange(len(weight.dims))] = rng.choice(EXTENTS)
    else:
        weight.dims.append(rng.choice(EXTENTS))


def _change_weight_type(model: Model, rng: Random) -> None:
    _weight(model, rng).data_type = rng.choice((*range(30), -1, 2**31 - 1))


def _change_weight_length(model: Model, rng: Random) -> None:
    weight = _weight(model, rng)
    weight.raw_data = weight.raw_data[: rng.randint(0, len(weight.raw_data))] or b"\0" * rng.randint(1, 9)


def _fill_weight(model: Model, rng: Random) -> None:
    weight = _weight(model, rng)
    with np.errstate(over="ignore"):
        weight.raw_data = np.full(len(weight.raw_data) // 4, rng.choice(FLOATS)).astype(np.float32).tobytes()


def _store_weight_elsewhere(model: Model, rng: Random) -> None:
    weight = _weight(model, rng)
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=rng.choice(("weights", "../../etc/passwd", "/etc/passwd")))
    weight.external_data.add(key="length", value=str(rng.choice(NUMBERS)))


def _empty_weight_of_many_dimensions(model: Model, rng: Random) -> None:
    """Give a weight dimensions beyond all memory, and no data."""
    weight = _weight(model, rng)
    weight.ClearField("raw_data")
    del weight.dims[:]
    weight.dims.extend([rng.choice((0, 1, 2**10, 2**20, 2**40)) for _ in range(rng.choice((1, 3, 100)))])


def _change_attribute(model: Model, rng: Random) -> None:
    """Give an attribute another number."""
    attributes = [attribute for node in model.graph.node for attribute in node.attribute]
    if not attributes:
        _node(model, rng).attribute.append(helper.make_attribute("axis", rng.choice(AXES)))
        return
    attribute = rng.choice(attributes)
    attribute.i = rng.choice(AXES)
    attribute.f = rng.choice((1e-5, -1.0, float("nan"), float("inf"), 3e38))
    if attribute.ints:
        attribute.ints[rng.randrange(len(attribute.ints))] = rng.choice((*AXES, *EXTENTS))
    if rng.random() < 0.3:
        attribute.type = rng.choice((AttributeProto.FLOAT, AttributeProto.INTS, AttributeProto.GRAPH))


def _add_attribute(model: Model, rng: Random) -> None:
    name = rng.choice(("axis", "axes", "perm", "kernel_shape", "pads", "strides", "group", "to", "dilations"))
    value = rng.choice((rng.choice(AXES), [rng.choice(AXES) for _ in range(rng.randint(1, 9))], 0.5, "text"))
    _node(model, rng).attribute.append(helper.make_attribute(name, value))


def _change_value_type(model: Model, rng: Random) -> None:
    value = rng.choice([*model.graph.input, *model.graph.output] or [model.graph.input.add()])
    dims = value.type.tensor_type.shape.dim
    if dims and rng.random() < 0.7:
        dims[rng.randrange(len(dims))].dim_value = rng.choice(EXTENTS)
    elif rng.random() < 0.5:
        dims.add().dim_value = rng.choice(EXTENTS)
    else:
        value.type.tensor_type.elem_type = rng.choice((*range(30), -1))


def _add_or_remove_value(model: Model, rng: Random) -> None:
    """Add or remove an input or an output."""
    values = rng.choice((model.graph.input, model.graph.output))
    if values and rng.random() < 0.4:
        values.pop()
    else:
        shape = [rng.choice(EXTENTS) for _ in range(rng.randint(0, 5))]
        values.append(helper.make_tensor_value_info(_name(model, rng), rng.choice((1, 7, 8, 9)), shape))


def _change_version(model: Model, rng: Random) -> None:
    if rng.random() < 0.3:
        model.ir_version = rng.choice((0, 1, 3, 8, 13, 9999, -1))
    elif model.opset_import:
        model.opset_import[0].version = rng.choice((-1, 0, 1, 6, 9, 13, 21, 25, 2**31, 2**62))


def _add_large_computation(model: Model, rng: Random) -> None:
    """Add a computation that is short to write and long to compute, with its result as an output."""
    count = rng.choice((10, 2**20, 2**27, 2**30, 2**33, 2**62, -5))
    many = numpy_helper.from_array(np.array([count], np.int64), "many")
    ends = [numpy_helper.from_array(np.array(number, np.int64), f"end{number}") for number in (0, 1)]
    one = numpy_helper.from_array(np.ones(1, np.float32), "one")
    model.graph.initializer.extend([many, one, *ends])
    operator = rng.choice(("ConstantOfShape", "Range", "Tile", "Expand", "Resize", "OneHot", "Pad"))
    inputs = {
        "ConstantOfShape": ["many"],
        "Range": ["end0", "many", "end1"],
        "Resize": ["one", "", "", "many"],
        "OneHot": ["end0", "many", "one"],
        "Pad": ["one", "many"],
    }.get(operator, ["one", "many"])
    model.graph.node.append(helper.make_node(operator, inputs, ["bomb"]))
    model.graph.output.append(helper.make_tensor_value_info("bomb", TensorProto.FLOAT, [count]))


def _add_nested_functions(model: Model, rng: Random) -> None:
    """Add functions that call each other twice, or in a circle."""
    depth, circle = rng.choice((1, 3, 10, 40)), rng.random() < 0.3
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    for level in range(depth):
        callee = f"f{level - 1}" if level or not circle else f"f{depth - 1}"
        domain = "own" if level or circle else ""
        steps = [("x", "half"), ("half", "y")]
        nodes = [
            helper.make_node(callee if domain else "Relu", [begin], [end], domain=domain)
            for begin, end in steps
        ]
        model.functions.append(helper.make_function("own", f"f{level}", ["x"], ["y"], nodes, imports))
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node.append(helper.make_node(f"f{depth - 1}", [_name(model, rng)], ["called"], domain="own"))


def _nest_branches(model: Model, rng: Random) -> None:
    """Nest graphs in the attributes of nodes."""
    graph = helper.make_graph([helper.make_node("Relu", [_name(model, rng)], ["deep"])], "g", [], [])
    for _ in range(rng.choice((1, 5, 30))):
        node = helper.make_node("If", [_name(model, rng)], ["deep"], then_branch=graph, else_branch=graph)
        if node.ByteSize() > 1 << 18:
            break
        graph = helper.make_graph([node], "g", [], [])
    model.graph.node.extend(graph.node)


def _add_sparse_weight(model: Model, rng: Random) -> None:
    model.graph.sparse_initializer.add().dims.append(rng.choice(EXTENTS))


DEFECTS: tuple[Defect, ...] = (
    _change_operator,
    _change_domain,
    _change_input,
    _remove_inputs,
    _change_output,
    _read_own_output,
    _remove_node,
    _shuffle_nodes,
    _remove_weight,
    _change_weight_shape,
    _change_weight_type,
    _change_weight_length,
    _fill_weight,
    _store_weight_elsewhere,
    _empty_weight_of_many_dimensions,
    _change_attribute,
    _add_attribute,
    _change_value_type,
    _add_or_remove_value,
    _change_version,
    _add_large_computation,
    _add_nested_functions,
    _nest_branches,
    _add_sparse_weight,
)
