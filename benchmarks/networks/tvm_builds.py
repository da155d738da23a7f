"""Builds of a model by TVM: untuned, and with schedules that tunefarm exported or that MetaSchedule found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.timing.contestants import spawn_process


def build_untuned(model: Path, target: str, library: Path) -> None:
    """Compile an ONNX file without schedules, in a separate process.

    Raises ModelError or ArtifactError as the compiler does.
    """
    with spawn_process() as process:
        process.submit(_build_untuned, model, target, library).result()


def build_with_database(model: Path, target: str, database: Path, library: Path) -> None:
    """Compile an ONNX file with the MetaSchedule database in the folder `database`, in a separate process.

    Raises ModelError or ArtifactError as the compiler does, InputError for damaged files, and RuntimeError
    when no record applies.
    """
    with spawn_process() as process:
        process.submit(_build_with_database, model, target, database, library).result()


def build_with_metaschedule(model: Path, target: str, database: Path, library: Path) -> None:
    """Compile an ONNX file with MetaSchedule's schedules of its subgraphs, in a separate process. Subgraphs
    without a schedule stay untuned.

    Raises as `build_with_database` does.
    """
    with spawn_process() as process:
        process.submit(_build_with_metaschedule, model, target, database, library).result()


def _build_untuned(model: Path, target: str, library: Path) -> None:
    from compiler.importing.model import fuse_untuned, read_onnx
    from compiler.packaging.artifact import build_library

    build_library(fuse_untuned(read_onnx(model.read_bytes(), {}), target), target, library)


def _build_with_database(model: Path, target: str, database: Path, library: Path) -> None:
    from tunefarm.tvm_database import build, file_database, tuned_model

    records = file_database(database)
    fused = tuned_model(model.read_bytes(), {}, target, records)
    build(_applied(fused, records, target), target).export_library(str(library))


def _build_with_metaschedule(model: Path, target: str, database: Path, library: Path) -> None:
    from compiler.importing.model import fuse, read_onnx
    from compiler.packaging.artifact import build_library
    from tunefarm.tvm_database import file_database

    fused = fuse(read_onnx(model.read_bytes(), {}), target)
    build_library(_applied(fused, file_database(database), target), target, library)


def _applied(fused: Any, records: Any, target: str) -> Any:
    """Return a module with its schedules applied, and its constants packed for them. Raises RuntimeError."""
    import tvm
    import tvm_ffi
    from tvm import relax

    from compiler.target import parse_target

    with records, parse_target(target), tvm.transform.PassContext(opt_level=3):
        applied = relax.transform.MetaScheduleApplyDatabase()(fused)
    if tvm_ffi.structural_equal(applied, fused):
        raise RuntimeError("no record of the database fits the model")
    return tvm.transform.Sequential(
        [relax.transform.SplitLayoutRewritePreproc(), relax.transform.FoldConstant()]
    )(applied)
