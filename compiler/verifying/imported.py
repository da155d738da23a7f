"""Compare an imported model's outputs with a reference for its file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import tvm
from numpy.typing import NDArray

from compiler import fallback
from compiler.importing.formats.exported_program import ExportedProgram
from compiler.importing.formats.model_file import ModelFile
from compiler.importing.formats.onnx_model import OnnxModel
from compiler.importing.model import RelaxModel, fuse, fuse_untuned, import_file
from compiler.importing.onnx_file import OnnxFile, node_name
from compiler.importing.padding import valid_part
from compiler.importing.spec import ModelError, NoReference, first_line
from compiler.importing.values import from_storage, to_storage
from compiler.measuring.outputs import (
    CHANGES_LIKEWISE,
    changes_likewise,
    compare_outputs,
    far_off,
    nudged,
    own_changes,
)
from compiler.target import parse_target
from compiler.verifying.decoder_cache import check_cache, check_shorter_steps
from compiler.verifying.edges import (
    QUOTIENT_IS_OPEN,
    ZERO_DIVISORS,
    EdgeSet,
    can_be_given,
    compare_edges,
    edge_sets,
    judge,
    step_of,
    varying,
)
from compiler.verifying.inputs import ORDINARY_SETS, divisors, drawn, index_extents, input_sets
from compiler.verifying.kernels import compile_model
from compiler.verifying.layers import Layers
from compiler.verifying.reference import Reference
from compiler.verifying.splitting import given_values, selected_from, split_at
from compiler.verifying.steps.formats import Defined, compute_edge, index_extents_of, split_into_steps
from compiler.verifying.steps.step import Step, StepwiseModel

Array = NDArray[Any]
# Operators, their right values by name, and what each computes from the right values of others.
Steps = tuple[Sequence[Step], Mapping[str, Array], Mapping[str, Array]]
ADVICE = "the model can't be tuned: report this with the file, or replace the operator"


@dataclass(frozen=True)
class Agreement:
    """The outputs agree for these `inputs`. A `note` describes a difference that the standard leaves open, or
    that rounding errors explain."""

    inputs: str
    note: str = ""


def verify_file(file: ModelFile, target: str, tuned_for: str) -> Iterator[Agreement]:
    """Compare the outputs of a model with the outputs of ONNX Runtime, PyTorch, XLA or LiteRT, as `verify`
    does."""
    on_gpu = parse_target(tuned_for).kind.name == "cuda"
    if on_gpu and isinstance(file, OnnxModel | ExportedProgram):
        file = file.as_function()
    if isinstance(file, OnnxModel):
        if file.file.cache is not None:
            check_cache(file.file)
        yield from verify(file.file, file.to_relax(), target, tuned_for)
        return
    if not isinstance(file, Defined):
        raise NoReference("a TVM module is defined by TVM alone")
    model = file.to_relax()
    if isinstance(file, ExportedProgram):
        check_shorter_steps(file, model.computed_in)
    imported: Imported | None = None
    operators = _Operators(file, target)
    extents = index_extents_of(file)
    first: Mapping[str, Array] = {}
    for what, inputs in zip(ORDINARY_SETS, drawn(file.inputs, extents), strict=True):
        expected = file.compute(inputs)
        imported = imported or Imported(model, target)
        actual = list(imported.compute(inputs).values())
        _check_computed(operators, inputs, model.computed_in, expected, actual)
        first = first or inputs
        yield Agreement(what)
    for edge in edge_sets(file.inputs, extents, first):
        right = compute_edge(file, edge.inputs)
        if right is None or imported is None:
            continue
        found = list(imported.compute(edge.inputs).values())
        wrong = compare_edges(right, found, model.computed_in)
        note = _explain_edge_by_operator(operators, edge, model.computed_in) if wrong else ""
        yield Agreement(edge.what, note)


def _check_computed(
    operators: _Operators,
    inputs: Mapping[str, Array],
    computed_in: str,
    expected: Sequence[Array],
    actual: Sequence[Array],
) -> None:
    """Do the same as `_check_outputs` for a model of another format than ONNX."""
    if wrong := compare_outputs(expected, actual, computed_in):
        if computed_in == "quantized":
            after_nudge = operators.file.compute({name: nudged(array) for name, array in inputs.items()})
            if changes_likewise(expected, actual, own_changes(expected, after_nudge)):
                raise NoReference(f"{CHANGES_LIKEWISE} ({wrong})")
        raise ModelError(f"{_describe_by_operator(operators, inputs, computed_in, wrong)}; {ADVICE}")
    if _are_far_off(expected, actual, computed_in):
        wrong = _far_off_step(operators, inputs, computed_in)
        if wrong:
            raise ModelError(f"{wrong}; {ADVICE}")


def _explain_edge_by_operator(operators: _Operators, edge: EdgeSet, computed_in: str) -> str:
    """Do the same as `_explain_edge` for a model of another format than ONNX."""
    try:
        steps, values, found = operators.compute(edge.inputs)
    except Exception as error:  # exceptions of PyTorch, MLIR and TVM have no common class
        reason = first_line(error)
        return f"for {edge.what}, outputs differ, and the operators can't be compared one by one ({reason})"
    return _explain_edge_by_step(steps, {**values, **edge.inputs}, found, edge, computed_in)


def _describe_by_operator(
    operators: _Operators, inputs: Mapping[str, Array], computed_in: str, wrong: str
) -> str:
    """Do the same as `_describe` for a model of another format than ONNX."""
    try:
        steps, values, found = operators.compute(inputs)
    except Exception:  # exceptions of PyTorch, MLIR and TVM have no common class
        steps, values, found = (), {}, {}
    for step in steps:
        for name in step.outputs:
            if difference := compare_outputs([values[name]], [found[name]], computed_in):
                return f"{step.label} is imported wrongly ({difference.removeprefix('output 0: ')})"
    return f"the imported model doesn't compute what the file defines ({wrong})"


def verify(file: OnnxFile, model: RelaxModel, target: str, tuned_for: str) -> Iterator[Agreement]:
    """Compare the outputs for one set of inputs after the other, and yield the sets that agreed. A quantized
    model is also compared layer by layer.

    The outputs come from the file as it was written, before functions were inlined. `target` is this
    machine's. What the model is rewritten to for `tuned_for`, such as dot products of bytes, is part of its
    layers. Raises ModelError, which names the first node whose value differs, and NoReference, also where
    ONNX's reference evaluator alone says that the model is wrong.
    """
    cut = selected_from(file)
    names = list(dict.fromkeys([*file.output_names, *cut]))
    is_same = file.original is file.proto
    reference = Reference(file.original, names if is_same else file.output_names)
    inner = reference if is_same or not cut else Reference(file.proto, cut)
    layers = Layers.of(file)
    in_layers = None if layers is None else _LayerRunner(layers, target, tuned_for)
    nodes = _Nodes(file, target)
    imported: Imported | None = None
    first: Mapping[str, Array] = {}

    def compute(inputs: Mapping[str, Array]) -> Imported:
        """Run the imported model. Its selections use given boxes and scores."""
        nonlocal imported
        if imported is None:
            chosen = import_file(split_at(file, cut, inputs), names) if cut else model
            imported = Imported(chosen, target)
        return imported

    for what, inputs in zip(ORDINARY_SETS, input_sets(file), strict=True):
        given_inputs = {**inputs, **file.weights}
        wanted = reference.compute(given_inputs)
        if inner is not reference:
            wanted |= inner.compute(given_inputs)
        found = compute(wanted).compute_like(wanted, {**inputs, **given_values(cut, wanted)})
        pairs = {name: wanted[name] for name in names}
        note = _check_outputs(nodes, reference, inputs, pairs, found, in_layers is not None)
        if in_layers is not None:
            in_layers.check(inputs)
        first = first or inputs
        yield Agreement(what, note)
    for edge in edge_sets(file.inputs, index_extents(file), first, divisors(file)):
        given_inputs = {**edge.inputs, **file.weights}
        right = reference.compute_edge(given_inputs)
        inside = right if inner is reference else inner.compute_edge(given_inputs)
        if right is None or inside is None:
            if edge.what == ZERO_DIVISORS:
                yield Agreement(edge.what, QUOTIENT_IS_OPEN)
            continue
        right = {**right, **inside}
        found = compute(right).compute_like(right, {**edge.inputs, **given_values(cut, right)})
        wrong = compare_edges(
            [right[name] for name in names], [found[name] for name in names], file.computed_in
        )
        yield Agreement(edge.what, _explain_edge(nodes, edge) if wrong else "")


def _explain_edge(nodes: _Nodes, edge: EdgeSet) -> str:
    """Return a note on outputs that differ for inputs at the edges. Each node is compared separately, for the
    reference's values. Raises ModelError for the first node with a wrong result."""
    try:
        steps, values, found = nodes.compute(edge.inputs)
    except ModelError as error:
        return f"for {edge.what}, outputs differ, and the nodes can't be compared one by one ({error})"
    return _explain_edge_by_step(steps, values, found, edge, nodes.file.computed_in)


def _check_outputs(
    nodes: _Nodes,
    reference: Reference,
    inputs: Mapping[str, Array],
    wanted: Mapping[str, Array],
    found: Mapping[str, Array],
    in_layers: bool,
) -> str:
    """Raise ModelError, which names the first wrong node, if values differ from `wanted`; NoReference if only
    ONNX Runtime or only ONNX's reference evaluator disagrees.

    Return a note if they differ as much as the reference's own values change with `nudged` inputs, "" if
    they agree. Such a model must be compared `in_layers`; otherwise raise NoReference.
    """
    file, message = nodes.file, ""
    expected, actual = list(wanted.values()), [found[name] for name in wanted]
    if wrong := compare_outputs(expected, actual, file.computed_in):
        if file.computed_in == "quantized":
            given = {**{name: nudged(array) for name, array in inputs.items()}, **file.weights}
            after_nudge = {**wanted, **reference.compute(given)}
            changes = own_changes(expected, [after_nudge[name] for name in wanted])
            if changes_likewise(expected, actual, changes):
                if in_layers:
                    return f"{CHANGES_LIKEWISE} ({wrong}); each layer by itself agrees"
                raise NoReference(f"{CHANGES_LIKEWISE} ({wrong})")
        message = _describe(file, inputs, nodes.target, wrong)
    elif _are_far_off(expected, actual, file.computed_in) and not reference.doubt:
        message = _far_off_step(nodes, inputs, file.computed_in)
    if message and reference.doubt:
        raise NoReference(
            f"ONNX Runtime can't run it ({reference.doubt}), and ONNX's reference evaluator, which has "
            f"mistakes of its own, computes something else ({message})"
        )
    if message and _evaluator_agrees(file, reference, inputs, found):
        raise NoReference(
            "ONNX Runtime and ONNX's reference evaluator compute different outputs, and the import agrees "
            f"with the evaluator ({message})"
        )
    if message:
        raise ModelError(f"{message}; {ADVICE}")
    return ""


def _evaluator_agrees(
    file: OnnxFile, reference: Reference, inputs: Mapping[str, Array], found: Mapping[str, Array]
) -> bool:
    """Return whether the outputs agree with ONNX's reference evaluator."""
    values = reference.evaluate({**inputs, **file.weights})
    if values is None:
        return False
    right, own = ([each[name] for name in file.output_names] for each in (values, found))
    return not compare_outputs(right, own, file.computed_in) and not _are_far_off(
        right, own, file.computed_in
    )


def _are_far_off(expected: Sequence[Array], actual: Sequence[Array], computed_in: str) -> bool:
    """Return whether a few values of outputs that agree on the whole are far off."""
    return any(far_off(right, own, computed_in) for right, own in zip(expected, actual, strict=True))


def _far_off_step(apart: _Operators | _Nodes, inputs: Mapping[str, Array], computed_in: str) -> str:
    """Describe the first operator that computes a few values wrongly; "" if there is none. Others only carry
    on rounding errors, as a comparison or a choice does.
    """
    try:
        steps, values, found = apart.compute(inputs)
    except Exception:  # each runtime raises its own
        return ""
    for step in steps:
        for name in step.outputs:
            if name in found and (wrong := far_off(values[name], found[name], computed_in)):
                return f"{step.label} is imported wrongly ('{name}': {wrong})"
    return ""


def _explain_edge_by_step(
    steps: Sequence[Step],
    values: Mapping[str, Array],
    found: Mapping[str, Array],
    edge: EdgeSet,
    computed_in: str,
) -> str:
    """Return the first difference that the standard leaves open. Raises ModelError for the first wrong
    one."""
    note = ""
    for step in steps:
        difference = judge(step, values, found, edge, computed_in)
        if difference is not None and not difference.is_open:
            raise ModelError(f"{difference.text}; {ADVICE}")
        if difference is not None:
            note = note or f"{difference.text}, which the standard leaves open"
    return note


class Imported:
    """Runs an imported model; only slow loop nests are scheduled."""

    def __init__(self, model: RelaxModel, target: str, tuned_for: str = "") -> None:
        """Prepare to run the model as TVM imports it or, with `tuned_for`, in the form that is tuned for a
        device."""
        fused = fuse(model, tuned_for) if tuned_for else fuse_untuned(model, target)
        self._machine = compile_model(fallback.schedule_slow(fused), target)
        self._model = model

    def compute(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by name."""
        arrays = [np.asarray(to_storage(inputs[spec.name]), order="C") for spec in self._model.inputs]
        result = self._machine["main"](*map(tvm.runtime.tensor, arrays))
        fields = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        pairs = zip(self._model.outputs, fields, strict=True)
        return {spec.name: from_storage(field.numpy(), spec.dtype) for spec, field in pairs}

    def compute_like(self, wanted: Mapping[str, Array], inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by name. Padded ones are cut to the shape in `wanted`, unless more rows are
        valid."""
        found = self.compute(inputs)
        for spec in self._model.outputs:
            if spec.padded_axis is not None:
                found[spec.name] = valid_part(found[spec.name], wanted[spec.name])
        return found


class _Operators:
    """Runs the operators of a model one by one, each with right operands. They are compiled once."""

    def __init__(self, file: Defined, target: str) -> None:
        self.file = file
        self._target = target
        self._compiled: tuple[StepwiseModel, Imported] | None = None

    def compute(self, inputs: Mapping[str, Array]) -> Steps:
        """Return the operators, their right values, and the values that each computes from right operands."""
        split, imported = self._compiled or (split_into_steps(self.file), None)
        values = dict(split.reference(inputs))
        imported = imported or Imported(split.to_relax(), self._target)
        self._compiled = split, imported
        own = imported.compute({**inputs, **split.given(values)})
        return split.steps, values, dict(zip(values, own.values(), strict=True))


class _Nodes:
    """Runs the nodes of an ONNX model one by one, each with right operands. They are compiled once for values
    of the same shapes."""

    def __init__(self, file: OnnxFile, target: str) -> None:
        self.file, self.target = file, target
        self._reference: Reference | None = None
        self._compiled: tuple[object, Imported] | None = None

    def compute(self, inputs: Mapping[str, Array]) -> Steps:
        """Return the nodes, their right values, and what each computes from right operands. Raises ModelError
        and NoReference."""
        file = self.file
        if self._reference is None or self._reference.doubt:  # ONNX Runtime may fail for some inputs only
            outputs = [name for node in file.proto.graph.node for name in node.output if name]
            self._reference = Reference(file.proto, outputs)
        values = self._reference.compute({**inputs, **file.weights})
        cut = [name for name in varying(file) if can_be_given(values[name])]
        shapes = [(name, values[name].shape, values[name].dtype) for name in cut]
        if self._compiled is None or self._compiled[0] != shapes:
            self._compiled = None  # frees its memory before the next is compiled
            results = [name for name in cut if values[name].size]
            model = import_file(split_at(file, cut, values), results)
            self._compiled = shapes, Imported(model, self.target)
        found = self._compiled[1].compute_like(values, {**inputs, **given_values(cut, values)})
        values |= {**file.weights, **inputs}
        values |= {one.name: onnx.numpy_helper.to_array(one) for one in file.proto.graph.initializer}
        return [step_of(node) for node in file.proto.graph.node], values, found


class _LayerRunner:
    """Runs the layers of a quantized model, each with the reference's bytes as inputs."""

    def __init__(self, layers: Layers, target: str, tuned_for: str) -> None:
        self._layers = layers
        self._target = tuned_for if parse_target(tuned_for).kind.name == "llvm" else target
        self._tuned_for = tuned_for
        self._reference = layers.reference()
        self._imported: Imported | None = None

    def check(self, inputs: Mapping[str, Array]) -> None:
        """Compare all layers for these inputs. Raises ModelError for the first wrong layer, and
        NoReference."""
        layers = self._layers
        wanted = self._reference.compute({**inputs, **layers.file.weights})
        try:
            if self._imported is None:
                model = import_file(layers.split(wanted), layers.results)
                self._imported = Imported(model, self._target, self._tuned_for)
        except ModelError as error:
            raise NoReference(f"its layers can't be compared one by one ({error})") from error
        found = self._imported.compute_like(wanted, {**inputs, **layers.given(wanted)})
        for culprit, name, wrong in layers.differences({**inputs, **wanted}, found):
            raise ModelError(f"{culprit} is imported wrongly ('{name}': {wrong}); {ADVICE}")


def _describe(file: OnnxFile, inputs: Mapping[str, Array], target: str, wrong: str) -> str:
    """Describe the first node whose value differs, and how; otherwise the output that differs."""
    for node, name, difference in _differences(file, inputs, target):
        culprit = f"operator {node.op_type} of {node_name(node)}"
        return f"{culprit} is imported wrongly ('{name}': {difference})"
    return f"the imported model doesn't compute what the file defines ({wrong})"


def _differences(file: OnnxFile, inputs: Mapping[str, Array], target: str) -> Iterator[tuple[Any, str, str]]:
    """Yield (node, value's name, difference) for the nodes of the graph whose values differ, in order."""
    nodes = [(node, name) for node in file.proto.graph.node for name in node.output if name]
    wanted = Reference(file.proto, [name for _, name in nodes]).compute({**inputs, **file.weights})
    cut = selected_from(file)
    model = import_file(split_at(file, cut, wanted), [name for _, name in nodes])
    found = Imported(model, target).compute_like(wanted, {**inputs, **given_values(cut, wanted)})
    for node, name in nodes:
        if wrong := compare_outputs([wanted[name]], [found[name]], file.computed_in):
            yield node, name, wrong.removeprefix("output 0: ")
