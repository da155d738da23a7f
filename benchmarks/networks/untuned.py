"""TVM's untuned build of a model: what it makes by default, without schedules."""

from __future__ import annotations

from pathlib import Path

from benchmarks.timing.contestants import spawn_process


def build(model: Path, target: str, library: Path) -> None:
    """Compiles an ONNX file in another process. Raises ModelError or ArtifactError as the compiler does."""
    with spawn_process() as process:
        process.submit(_build, model, target, library).result()


def _build(model: Path, target: str, library: Path) -> None:
    from compiler.importing.model import fuse_untuned, read_onnx
    from compiler.packaging.artifact import build_library

    library.write_bytes(build_library(fuse_untuned(read_onnx(model.read_bytes(), {}), target), target))
