"""Compiled models of ONNX files for this machine, without schedules, as `tunefarm tune` writes them."""

from __future__ import annotations

from pathlib import Path

from compiler.importing.model import fuse_untuned, read_onnx
from compiler.packaging.artifact import Manifest, build_library
from compiler.target import detect_device, parse_target, target_features


def compile_model(model: bytes, folder: Path, threads: int = 1) -> Path:
    """Write `model.so` and `manifest.json` of an ONNX model into a new folder, and return it."""
    folder.mkdir(parents=True)
    device, imported = detect_device(threads), read_onnx(model, {})
    build_library(fuse_untuned(imported, device.target), device.target, folder / "model.so")
    manifest = Manifest(
        model_name="net",
        model_sha="sha",
        target=device.target,
        device_class=device.key,
        inputs=imported.inputs,
        outputs=imported.outputs,
        threads=threads,
        versions={},
        created_at=0.0,
        instructions=tuple(sorted(target_features(parse_target(device.target)))),
    )
    (folder / "manifest.json").write_text(manifest.to_json())
    return folder
