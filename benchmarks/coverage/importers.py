"""The importers that are compared, and the process in which they try one case after the other."""

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
from benchmarks.coverage.tried import Answer, Outcome
from compiler.codegen.pipeline import UNTUNED
from compiler.importing.model import fuse_untuned, read_onnx
from compiler.importing.padding import valid_part
from compiler.importing.spec import ModelError, first_line

TARGET = '{"kind":"llvm","num-cores":1}'
# The kernels run for microseconds: optimizing them would take most of the time.
BUILD_TARGET = {"kind": "llvm", "opt-level": 0}
CASE_S = 120.0
# Sums are rounded in another order than in ONNX's reference. Near zero, where ONNX's runner has a constant
# bound, an output may be off by this many rounding errors of its largest value.
ROUNDING_ERRORS = 4


def _ours(case: Case) -> tvm.IRModule:
    """Import as a job does. Raises ModelError."""
    shapes = {name: array.shape for name, array in case.inputs.items() if isinstance(array, np.ndarray)}
    return fuse_untuned(read_onnx(case.model, shapes), TARGET)


def _tvms(case: Case) -> tvm.IRModule:
    """Import as TVM's documentation shows."""
    module = from_onnx(onnx.load_from_string(case.model))
    with tvm.target.Target({"kind": "llvm", "num-cores": 1}):
        return relax.get_pipeline("zero")(module)


OURS, TVM_FRONTEND_OPS = "tunefarm", "TVM"
IMPORTERS: dict[str, Callable[[Case], tvm.IRModule]] = {OURS: _ours, TVM_FRONTEND_OPS: _tvms}
PIPELINES = {OURS: UNTUNED, TVM_FRONTEND_OPS: "default"}


def attempt(importer: str, case: Case) -> Answer:
    """Import, compile and run a case, and compare its outputs as ONNX does."""
    try:
        # TVM prints what fails and warns of names.
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            executable = relax.build(
                IMPORTERS[importer](case), tvm.target.Target(BUILD_TARGET), tir_pipeline=PIPELINES[importer]
            )
            found = run(executable, list(case.inputs.values()))
    except ModelError as error:
        return Answer(Outcome.REFUSED, str(error))
    except Exception as error:
        return Answer(Outcome.REFUSED, f"{type(error).__name__}: {first_line(error)}")
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
        return Answer(Outcome.WRONG, " ".join(str(error).split())[:300])
    return Answer(Outcome.RIGHT)


def _rounding_error(values: Array) -> float:
    """Return the rounding error of the largest finite value, zero for integers."""
    if values.size == 0 or values.dtype.kind in "iub":
        return 0.0
    sizes = np.abs(values.astype(np.float64))
    eps = float(ml_dtypes.finfo(values.dtype).eps)  # type: ignore[no-untyped-call]
    return float(np.max(sizes, where=np.isfinite(sizes), initial=0.0)) * eps


def run(executable: Any, inputs: Sequence[Array]) -> list[Array]:
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*(tvm.runtime.tensor(np.asarray(array, order="C")) for array in inputs))
    fields = [result] if isinstance(result, tvm.runtime.Tensor) else list(result)
    return [field.numpy() for field in fields]


class Attempts:
    """Tries cases in a process, which is replaced when it crashes or hangs."""

    def __init__(self, importer: str) -> None:
        self._importer = importer
        self._process: multiprocessing.process.BaseProcess | None = None

    def __enter__(self) -> Attempts:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def attempt(self, case: Case) -> Answer:
        if self._process is None:
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            self._process = context.Process(target=_serve, args=(self._importer, theirs), daemon=True)
            self._process.start()
            theirs.close()
        try:
            self._connection.send(case)
            if self._connection.poll(CASE_S):
                answer: Answer = self._connection.recv()
                return answer
            why = f"it takes longer than {CASE_S:g} s"
        except (EOFError, OSError):
            self._process.join()
            why = f"the process ended with status {self._process.exitcode}"
        self._stop()
        return Answer(Outcome.CRASHED, why)

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
