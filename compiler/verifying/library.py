"""Compare a compiled library with the model that it was compiled from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from compiler.importing.formats.exported_program import ExportedProgram
from compiler.importing.formats.model_file import ModelFile
from compiler.importing.formats.onnx_model import OnnxModel
from compiler.importing.formats.stablehlo_model import StablehloModel
from compiler.importing.formats.tflite_model import TfliteModel
from compiler.importing.padding import valid_part
from compiler.importing.spec import ModelError, NoReference
from compiler.measuring.outputs import compare_outputs
from compiler.packaging.artifact import Manifest
from compiler.packaging.cuda import load_cuda
from compiler.target import parse_target
from compiler.verifying.edges import compare_edges, edge_sets, is_open_at_edge
from compiler.verifying.inputs import USUAL, drawn, input_sets
from compiler.verifying.reference import Reference

Array = NDArray[Any]
Compute = Callable[[Mapping[str, Array]], dict[str, Array]]
OWN = "your inputs"


@dataclass(frozen=True)
class Check:
    """How the outputs of a library compare for some `inputs`. Empty `wrong` and `note` mean that they agree;
    a `note` says where they differ though the standard leaves the result open."""

    inputs: str
    wrong: str = ""
    note: str = ""


def compare_library(
    file: ModelFile, library: Path, manifest: Manifest, own: Sequence[Mapping[str, Array]]
) -> Iterator[Check]:
    """Yield how the library's outputs compare for usual inputs, for those at the edges of their types,
    and for the user's `own`.

    This runs the library's code. Raises ModelError where the model has other inputs than the library, and
    NoReference where nothing here can run the model.
    """
    expected = [(spec.name, spec.shape, spec.dtype) for spec in manifest.inputs]
    if [(spec.name, spec.shape, spec.dtype) for spec in file.inputs] != expected:
        raise ModelError(
            f"the model takes {_listed(file.inputs)}, and the library {_listed(manifest.inputs)}"
        )
    run = _load(library, manifest)
    onnx_file = file.file if isinstance(file, OnnxModel) else None
    reference = None if onnx_file is None else Reference(onnx_file.original, onnx_file.output_names)

    def right(inputs: Mapping[str, Array]) -> list[Array]:
        if onnx_file is not None and reference is not None:
            return list(reference.compute({**inputs, **onnx_file.weights}).values())
        if isinstance(file, ExportedProgram | StablehloModel | TfliteModel):
            return list(file.compute(inputs))
        raise NoReference("a TVM module is defined by TVM alone")

    def compare(inputs: Mapping[str, Array]) -> str:
        return compare_outputs(*_alike(right(inputs), run(inputs), manifest), manifest.computed_in)

    sets = drawn(file.inputs, {}) if onnx_file is None else input_sets(onnx_file)
    first: dict[str, Array] = {}
    for what, inputs in zip(USUAL, sets, strict=True):
        wrong = compare(inputs)
        if wrong and reference is not None and reference.doubt:
            raise NoReference(f"ONNX Runtime can't run the model ({reference.doubt})")
        first = first or inputs
        yield Check(what, wrong)
    for given in own:
        yield Check(OWN, compare(given))
    if (
        onnx_file is None
        or reference is None
        or any(spec.padded_axis is not None for spec in manifest.outputs)
    ):
        return
    for edge in edge_sets(onnx_file, first):
        wanted = reference.compute_edge({**edge.inputs, **onnx_file.weights})
        if wanted is None:
            continue
        expected_values, actual = _alike(list(wanted.values()), run(edge.inputs), manifest)
        wrong = compare_edges(expected_values, actual, manifest.computed_in)
        is_open = bool(wrong) and is_open_at_edge(onnx_file, edge, expected_values, actual)
        yield Check(edge.what, "" if is_open else wrong, wrong if is_open else "")


def _load(library: Path, manifest: Manifest) -> Callable[[Mapping[str, Array]], list[Array]]:
    on_gpu = parse_target(manifest.target).kind.name == "cuda"
    if on_gpu:
        load_cuda()
    device = tvm.cuda() if on_gpu else tvm.cpu()
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), device)

    def run(inputs: Mapping[str, Array]) -> list[Array]:
        arrays = [np.asarray(inputs[spec.name], order="C") for spec in manifest.inputs]
        result = machine["main"](*(tvm.runtime.tensor(array, device) for array in arrays))
        return [one.numpy() for one in ([result] if len(manifest.outputs) == 1 else result)]

    return run


def _alike(wanted: list[Array], found: list[Array], manifest: Manifest) -> tuple[list[Array], list[Array]]:
    """Cut outputs that are padded to the length that is wanted, unless more of them is valid."""
    pairs = zip(manifest.outputs, wanted, found, strict=True)
    return wanted, [own if spec.padded_axis is None else valid_part(own, right) for spec, right, own in pairs]


def _listed(specs: Sequence[Any]) -> str:
    return ", ".join(f"{spec.name} {spec.dtype} {spec.shape}" for spec in specs) or "no inputs"
