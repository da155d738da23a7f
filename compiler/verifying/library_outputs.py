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
from compiler.importing.onnx_file import OnnxFile
from compiler.importing.padding import valid_part
from compiler.importing.spec import ModelError, NoReference
from compiler.importing.values import from_storage, to_storage
from compiler.measuring.outputs import (
    CHANGES_LIKEWISE,
    changes_likewise,
    compare_outputs,
    nudged,
    own_changes,
)
from compiler.packaging.artifact import Manifest
from compiler.packaging.cuda import load_cuda
from compiler.packaging.weights import bind_weights
from compiler.target import parse_target
from compiler.verifying.edges import (
    QUOTIENT_IS_OPEN,
    ZERO_DIVISORS,
    compare_edges,
    edge_sets,
    is_open_at_edge,
)
from compiler.verifying.inputs import ORDINARY_SETS, divisors, drawn, index_extents
from compiler.verifying.reference import Reference
from compiler.verifying.steps.formats import Defined, compute_edge, index_extents_of, split_into_steps

Array = NDArray[Any]
Compute = Callable[[Mapping[str, Array]], dict[str, Array]]
OWN = "your inputs"


@dataclass(frozen=True)
class Check:
    """The comparison of a library's outputs for some `inputs`. If `wrong` and `note` are empty, they agree. A
    `note` describes a difference that the standard leaves open, or that rounding errors explain."""

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
    if manifest.cache is None and isinstance(file, OnnxModel | ExportedProgram):
        file = file.as_function()
    expected = [(spec.name, spec.shape, spec.dtype) for spec in manifest.inputs]
    if [(spec.name, spec.shape, spec.dtype) for spec in file.inputs] != expected:
        raise ModelError(
            f"the model takes {_listed(file.inputs)}, and the library {_listed(manifest.inputs)}"
        )
    run = _load(library, manifest)
    right = _reference_of(file)

    first: dict[str, Array] = {}
    for what, inputs in zip(ORDINARY_SETS, drawn(file.inputs, right.extents, right.divisors), strict=True):
        check = _check(what, inputs, right, run, manifest)
        if check.wrong and right.doubt:
            raise NoReference(f"ONNX Runtime can't run the model ({right.doubt})")
        first = first or inputs
        yield check
    for given in own:
        yield _check(OWN, given, right, run, manifest)
    if any(spec.padded_axis is not None for spec in manifest.outputs):
        return
    for edge in edge_sets(file.inputs, right.extents, first, right.divisors):
        wanted = right.compute_edge(edge.inputs)
        if wanted is None:
            if edge.what == ZERO_DIVISORS:
                yield Check(edge.what, note=QUOTIENT_IS_OPEN)
            continue
        expected_values, actual = _comparable(wanted, run(edge.inputs), manifest)
        wrong = compare_edges(expected_values, actual, manifest.computed_in)
        is_open = bool(wrong) and is_open_at_edge(right.kinds(), edge, expected_values, actual)
        yield Check(edge.what, "" if is_open else wrong, wrong if is_open else "")


def _check(
    what: str,
    inputs: Mapping[str, Array],
    right: _OnnxReference | _StepwiseReference,
    run: Callable[[Mapping[str, Array]], list[Array]],
    manifest: Manifest,
) -> Check:
    wanted, found = _comparable(right.compute(inputs), run(inputs), manifest)
    wrong = compare_outputs(wanted, found, manifest.computed_in)
    if wrong and manifest.computed_in == "quantized":
        after_nudge = right.compute({name: nudged(array) for name, array in inputs.items()})
        if changes_likewise(wanted, found, own_changes(wanted, after_nudge)):
            return Check(what, note=f"{CHANGES_LIKEWISE} ({wrong})")
    return Check(what, wrong)


def _reference_of(file: ModelFile) -> _OnnxReference | _StepwiseReference:
    """Raises NoReference where nothing defines the model."""
    if isinstance(file, OnnxModel):
        return _OnnxReference(file.file)
    if isinstance(file, Defined):
        return _StepwiseReference(file)
    raise NoReference("a TVM module is defined by TVM alone")


class _OnnxReference:
    """Computes what ONNX Runtime does. `extents` bound the inputs that are indices; `divisors` aren't 0."""

    def __init__(self, file: OnnxFile) -> None:
        self._file = file
        self._reference = Reference(file.original, file.output_names)
        self.extents = index_extents(file)
        self.divisors = divisors(file)

    @property
    def doubt(self) -> str:
        """Why ONNX Runtime can't run it; empty where it can."""
        return self._reference.doubt

    def compute(self, inputs: Mapping[str, Array]) -> list[Array]:
        return list(self._reference.compute({**inputs, **self._file.weights}).values())

    def compute_edge(self, inputs: Mapping[str, Array]) -> list[Array] | None:
        values = self._reference.compute_edge({**inputs, **self._file.weights})
        return None if values is None else list(values.values())

    def kinds(self) -> frozenset[str]:
        return frozenset(node.op_type for node in self._file.proto.graph.node)


class _StepwiseReference:
    """Computes what PyTorch, XLA or LiteRT does. `extents` bound the inputs that are indices."""

    doubt = ""
    divisors: frozenset[str] = frozenset()

    def __init__(self, file: Defined) -> None:
        self._file = file
        self.extents = index_extents_of(file)

    def compute(self, inputs: Mapping[str, Array]) -> list[Array]:
        return list(self._file.compute(inputs))

    def compute_edge(self, inputs: Mapping[str, Array]) -> list[Array] | None:
        return compute_edge(self._file, inputs)

    def kinds(self) -> frozenset[str]:
        return frozenset[str]().union(*(step.kinds for step in split_into_steps(self._file).steps))


def _load(library: Path, manifest: Manifest) -> Callable[[Mapping[str, Array]], list[Array]]:
    on_gpu = parse_target(manifest.target).kind.name == "cuda"
    if on_gpu:
        load_cuda()
    device = tvm.cuda() if on_gpu else tvm.cpu()
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), device)
    main = bind_weights(machine["main"], library)

    def run(inputs: Mapping[str, Array]) -> list[Array]:
        arrays = [np.asarray(to_storage(inputs[spec.name]), order="C") for spec in manifest.inputs]
        result = main(*(tvm.runtime.tensor(array, device) for array in arrays))
        fields = [result] if len(manifest.outputs) == 1 else list(result)
        pairs = zip(manifest.outputs, fields, strict=True)
        return [from_storage(field.numpy(), spec.dtype) for spec, field in pairs]

    return run


def _comparable(
    wanted: list[Array], found: list[Array], manifest: Manifest
) -> tuple[list[Array], list[Array]]:
    """Cut outputs that are padded to the length that is wanted, unless more of them is valid."""
    pairs = zip(manifest.outputs, wanted, found, strict=True)
    return wanted, [own if spec.padded_axis is None else valid_part(own, right) for spec, right, own in pairs]


def _listed(specs: Sequence[Any]) -> str:
    return ", ".join(f"{spec.name} {spec.dtype} {spec.shape}" for spec in specs) or "no inputs"
