"""The compared importers, and the process in which they try one case after the other."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import warnings
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import tvm
from onnx.backend.test.runner import Runner
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

from benchmarks.coverage.cases import Array, Case
from benchmarks.coverage.tried import Outcome, Verdict
from compiler.codegen.pipeline import UNTUNED
from compiler.importing.model import fuse_untuned, read_onnx
from compiler.importing.padding import valid_part
from compiler.importing.spec import ModelError, first_line
from compiler.importing.values import from_storage, to_storage

TARGET = '{"kind":"llvm","num-cores":1}'
# The kernels run for microseconds: optimizing them would take most of the time.
BUILD_TARGET = {"kind": "llvm", "opt-level": 0}
CASE_S = 120.0
# Sums are rounded in a different order than in ONNX's reference. Near zero, where ONNX's runner has a
# constant tolerance, an output may differ by this many rounding errors of its largest value.
ROUNDING_ERRORS = 4
# A compiled model, and the types of its outputs; empty if the model has them itself.
Imported = tuple[tvm.IRModule, list[str]]


def _ours(case: Case) -> Imported:
    """Import a case as a job does. Raises ModelError."""
    shapes = {name: array.shape for name, array in case.inputs.items() if isinstance(array, np.ndarray)}
    model = read_onnx(case.model, shapes)
    return fuse_untuned(model, TARGET), [spec.dtype for spec in model.outputs]


def _tvms(case: Case) -> Imported:
    """Import a case as in TVM's documentation."""
    module = from_onnx(onnx.load_from_string(case.model))
    with tvm.target.Target({"kind": "llvm", "num-cores": 1}):
        return relax.get_pipeline("zero")(module), []


OURS, TVM_FRONTEND_OPS = "tunefarm", "TVM"
IMPORTERS: dict[str, Callable[[Case], Imported]] = {OURS: _ours, TVM_FRONTEND_OPS: _tvms}
PIPELINES = {OURS: UNTUNED, TVM_FRONTEND_OPS: "default"}


def attempt(importer: str, case: Case) -> Verdict:
    """Import, compile and run a case, and compare its outputs as ONNX does."""
    try:
        # TVM prints failures, and warns about names.
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            module, types = IMPORTERS[importer](case)
            executable = relax.build(
                module, tvm.target.Target(BUILD_TARGET), tir_pipeline=PIPELINES[importer]
            )
            found = run(executable, list(case.inputs.values()), types)
    except ModelError as error:
        return Verdict(Outcome.REFUSED, str(error))
    except Exception as error:
        return Verdict(Outcome.REFUSED, f"{type(error).__name__}: {first_line(error)}")
    try:
        if len(found) != len(case.outputs):
            raise AssertionError(f"{len(found)} outputs instead of {len(case.outputs)}")
        for wanted, output in zip(case.outputs, found, strict=True):
            if not isinstance(wanted, np.ndarray | np.generic):
                raise AssertionError("an array instead of a sequence or nothing")
            output = valid_part(output, np.asarray(wanted))
            absolute = max(case.absolute_tolerance, ROUNDING_ERRORS * _rounding_error(wanted))
            Runner.assert_similar_outputs([wanted], [output], case.relative_tolerance, absolute, case.name)
    except Exception as error:
        return Verdict(Outcome.WRONG, " ".join(str(error).split())[:300])
    return Verdict(Outcome.RIGHT)


def _rounding_error(values: Array) -> float:
    """Return the rounding error of the largest finite value; 0 for integers."""
    if values.size == 0 or "float" not in str(values.dtype):
        return 0.0
    sizes = np.abs(values.astype(np.float64))
    eps = float(ml_dtypes.finfo(values.dtype).eps)  # type: ignore[no-untyped-call]
    return float(np.max(sizes, where=np.isfinite(sizes), initial=0.0)) * eps


def run(executable: Any, inputs: Sequence[Array], types: Sequence[str]) -> list[Array]:
    """Run a model and return its outputs. Outputs of types below a byte are bytes; `types` has their
    types."""
    machine = relax.VirtualMachine(executable, tvm.cpu())
    stored = [np.asarray(to_storage(np.asarray(array)), order="C") for array in inputs]
    result = machine["main"](*map(tvm.runtime.tensor, stored))
    fields = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    found = [field.numpy() for field in fields]
    return list(map(from_storage, found, types)) if types else found


class Attempts:
    """Tries cases in a process, which is replaced if it crashes or hangs."""

    def __init__(self, importer: str) -> None:
        self._importer = importer
        self._process: multiprocessing.process.BaseProcess | None = None

    def __enter__(self) -> Attempts:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def attempt(self, case: Case) -> Verdict:
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(self._importer, theirs), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._connection.send(case)
            if self._connection.poll(CASE_S):
                answer: Verdict = self._connection.recv()
                return answer
            why = f"it takes longer than {CASE_S:g} s"
        except (EOFError, OSError):
            self._process.join()
            why = f"the process ended with status {self._process.exitcode}"
        self._stop()
        return Verdict(Outcome.CRASHED, why)

    def _stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._connection.close()
            self._process = None


def _serve(importer: str, connection: Connection) -> None:
    with contextlib.suppress(EOFError):
        while True:
            connection.send(attempt(importer, connection.recv()))
