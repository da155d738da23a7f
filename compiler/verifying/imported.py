"""Compare what an imported model computes with what its file defines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from compiler import fallback
from compiler.importing.formats.exported_program import ExportedProgram
from compiler.importing.formats.model_file import ModelFile
from compiler.importing.formats.onnx_model import OnnxModel
from compiler.importing.formats.tflite_model import TfliteModel
from compiler.importing.model import RelaxModel, fuse_untuned, import_file
from compiler.importing.onnx_file import OnnxFile, node_name
from compiler.importing.spec import ModelError, NoReference
from compiler.measuring.outputs import compare_outputs
from compiler.verifying.inputs import drawn, input_sets
from compiler.verifying.reference import Reference

Array = NDArray[Any]
ADVICE = "the model can't be tuned: report this with the file, or replace the operator"


def verify_file(file: ModelFile, target: str) -> Iterator[int]:
    """Compare the outputs of a model as `verify` does, with those of ONNX Runtime, PyTorch or LiteRT."""
    if isinstance(file, OnnxModel):
        yield from verify(file.file, file.to_relax(), target)
        return
    if not isinstance(file, ExportedProgram | TfliteModel):
        raise NoReference("a TVM module is defined by TVM alone")
    model = file.to_relax()
    imported: Imported | None = None
    for number, inputs in enumerate(drawn(file.inputs, {}), start=1):
        expected = file.compute(inputs)
        imported = imported or Imported(model, target)
        actual = list(imported.compute(inputs).values())
        if wrong := compare_outputs(expected, actual, model.computed_in):
            raise ModelError(f"the imported model doesn't compute what the file defines ({wrong}); {ADVICE}")
        yield number


def verify(file: OnnxFile, model: RelaxModel, target: str) -> Iterator[int]:
    """Compare the outputs for one set of inputs after the other; yield how many have agreed.

    `target` is this machine's. Raises ModelError, which names the first node whose value differs, and
    NoReference.
    """
    reference = Reference(file.proto, file.output_names)
    imported: Imported | None = None
    for number, inputs in enumerate(input_sets(file), start=1):
        wanted = reference.compute({**inputs, **file.weights})
        imported = imported or Imported(model, target)
        found = imported.compute(inputs)
        names = list(wanted)
        expected, actual = [wanted[name] for name in names], [found[name] for name in names]
        if wrong := compare_outputs(expected, actual, file.computed_in):
            raise ModelError(_describe(file, inputs, target, wrong))
        yield number


class Imported:
    """Runs an imported model; only slow loop nests are scheduled."""

    def __init__(self, model: RelaxModel, target: str) -> None:
        # LLVM's higher levels take twice as long, which the few calls don't gain.
        quickly = tvm.target.Target({"kind": "llvm", "opt-level": 1})
        executable = relax.build(fallback.schedule_slow(fuse_untuned(model, target)), quickly)
        self._machine = relax.VirtualMachine(executable, tvm.cpu())
        self._model = model

    def compute(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by name."""
        arrays = [np.asarray(inputs[spec.name], order="C") for spec in self._model.inputs]
        result = self._machine["main"](*map(tvm.runtime.tensor, arrays))
        fields = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
        names = [spec.name for spec in self._model.outputs]
        return {name: field.numpy() for name, field in zip(names, fields, strict=True)}


def _describe(file: OnnxFile, inputs: Mapping[str, Array], target: str, wrong: str) -> str:
    """Say which node's value is the first to differ, and how; without one, which output does."""
    for node, name, difference in _differences(file, inputs, target):
        culprit = f"operator {node.op_type} of {node_name(node)}"
        return f"{culprit} is imported wrongly ('{name}': {difference}); {ADVICE}"
    return f"the imported model doesn't compute what the file defines ({wrong}); {ADVICE}"


def _differences(file: OnnxFile, inputs: Mapping[str, Array], target: str) -> Iterator[tuple[Any, str, str]]:
    """Yield the nodes of the graph whose values differ, in order, with the value's name and how it does."""
    nodes = [(node, name) for node in file.proto.graph.node for name in node.output if name]
    wanted = Reference(file.proto, [name for _, name in nodes]).compute({**inputs, **file.weights})
    found = Imported(import_file(file, [name for _, name in nodes]), target).compute(inputs)
    for node, name in nodes:
        if wrong := compare_outputs([wanted[name]], [found[name]], file.computed_in):
            yield node, name, wrong.removeprefix("output 0: ")
