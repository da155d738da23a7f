"""Split a StableHLO program into the operations of its function `main`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from compiler.importing.formats.stablehlo_model import StablehloModel, bytecode
from compiler.importing.spec import TensorSpec
from compiler.importing.stablehlo.attributes import mlir, tensor_type
from compiler.importing.stablehlo.importer import functions_of, place
from compiler.verifying.edges import BATCH_GROUPS
from compiler.verifying.steps.step import GIVEN, Step, StepwiseModel

Array = NDArray[Any]


def split_into_steps(file: StablehloModel) -> StepwiseModel:
    """Return the operations of main that depend on its inputs. A call is one step."""
    names, steps = _steps(file)
    results = tuple(name for step in steps for name in step.outputs)
    observed = StablehloModel(_rewritten(file, names, results, cut=False), file.inputs, results)

    def reference(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return dict(zip(results, observed.compute(inputs), strict=True))

    def to_relax() -> Any:
        module = _rewritten(file, names, results, cut=True)
        arguments = list(functions_of(module)["main"].regions[0].blocks[0].arguments)
        further = arguments[len(file.inputs) :]
        given = [
            TensorSpec(f"{name}{GIVEN}", *tensor_type(argument.type))
            for name, argument in zip(results, further, strict=True)
        ]
        return StablehloModel(module, (*file.inputs, *given), results).to_relax()

    return StepwiseModel(steps, reference, to_relax)


def _operations(module: Any) -> list[Any]:
    return [op.operation for op in functions_of(module)["main"].regions[0].blocks[0].operations]


def _steps(file: StablehloModel) -> tuple[dict[tuple[int, int], str], tuple[Step, ...]]:
    """Return the names of values, by the positions of operations and their results, and the steps."""
    functions = functions_of(file.module)
    block = functions["main"].regions[0].blocks[0]
    varying = {value: spec.name for value, spec in zip(block.arguments, file.inputs, strict=True)}
    names: dict[tuple[int, int], str] = {}
    steps = []
    for position, op in enumerate(_operations(file.module)[:-1]):
        read = [value for value in _read(op) if value in varying]
        if not read:
            continue
        outputs = []
        for number, result in enumerate(op.results):
            outputs.append(f"value{position}.{number}")
            varying[result] = names[position, number] = outputs[-1]
        label = f"operation {op.name} at {place(op.location)}"
        inputs = tuple(varying[value] for value in read)
        steps.append(Step(_kinds(op, functions, frozenset()), label, inputs, tuple(outputs)))
    return names, tuple(steps)


def _read(op: Any) -> list[Any]:
    """Return the values that an operation reads, also in its regions."""
    found: list[Any] = list(op.operands)
    for region in op.regions:
        for block in region.blocks:
            for inner in block.operations:
                found += _read(inner.operation)
    return found


def _kinds(op: Any, functions: Mapping[str, Any], seen: frozenset[str]) -> frozenset[str]:
    found = {op.name}
    if "batch_group_count" in op.attributes and int(op.attributes["batch_group_count"].value) > 1:
        found.add(BATCH_GROUPS)
    inside = list(op.regions)
    if op.name == "func.call" and (name := op.attributes["callee"].value) not in seen:
        seen = seen | {name}
        inside += list(functions[name].regions)
    for region in inside:
        for block in region.blocks:
            for inner in block.operations:
                found |= _kinds(inner.operation, functions, seen)
    return frozenset(found)


def _rewritten(
    file: StablehloModel, names: Mapping[tuple[int, int], str], results: tuple[str, ...], *, cut: bool
) -> Any:
    """Return the program with a `main` that returns these values. With `cut`, the readers of a value read an
    additional argument instead."""
    ir = mlir("ir")
    with file.module.context, ir.Location.unknown():
        module = ir.Module.parse(bytecode(file.module))
        main = functions_of(module)["main"]
        block = main.regions[0].blocks[0]
        operations = _operations(module)
        values = [operations[position].results[number] for position, number in names]
        if cut:
            for value in values:
                value.replace_all_uses_with(block.add_argument(value.type, ir.Location.unknown()))
        operations[-1].erase()
        with ir.InsertionPoint(block):
            ir.Operation.create("func.return", operands=values)
        for name in ("arg_attrs", "res_attrs"):
            if name in main.attributes:
                del main.attributes[name]
        kind = ir.FunctionType.get(
            [argument.type for argument in block.arguments], [value.type for value in values]
        )
        main.attributes["function_type"] = ir.TypeAttr.get(kind)
        return module
