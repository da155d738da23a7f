"""Compiled models of ONNX files for this machine, without schedules, as `tunefarm tune` writes them."""

from __future__ import annotations

import dataclasses
import hashlib
import io
from collections.abc import Mapping
from pathlib import Path

from onnx import helper

from compiler.importing.formats.onnx_model import read
from compiler.importing.model import RelaxModel, fuse, fuse_untuned, read_onnx
from compiler.packaging.artifact import Manifest, build_library, instructions_of, write
from compiler.target import detect_device
from system.signing import SigningKey
from tests.compiled import build_module
from tunefarm.client.artifact import unpack
from tunefarm.client.sizes import sizes_of


def compile_model(model: bytes, folder: Path, threads: int = 1, scheduled: bool = False) -> Path:
    """Write `model.so` and `manifest.json` of an ONNX model into a new folder, and return it.

    With `scheduled`, kernels have fallback schedules, which are parallel.
    """
    folder.mkdir(parents=True)
    device, imported = detect_device(threads), read_onnx(model, {})
    if scheduled:
        build_module(fuse(imported, device.target), {}, device.target, folder / "model.so")
    else:
        build_library(fuse_untuned(imported, device.target), device.target, folder / "model.so")
    with (folder / "model.so").open("rb") as library:
        instructions = instructions_of(library, device.target)
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
        instructions=instructions,
    )
    (folder / "manifest.json").write_text(manifest.to_json())
    return folder


def compile_decoder(
    model: bytes, folder: Path, given: Mapping[str, tuple[int, ...]], scheduled: bool = False
) -> Path:
    """Compile a decoder in all sizes, like a job without trials; return the folder.

    With `scheduled`, it is rewritten to be tuned, and its kernels have fallback schedules.
    """
    file, device = folder / "decoder.onnx", detect_device(1)
    file.write_bytes(model)
    [sizes] = sizes_of([file], given)
    for size in sizes:
        imported = read(model, size.shapes).to_relax()
        own = folder / "tuned" / (size.name or "one")
        own.mkdir(parents=True)
        if scheduled:
            build_module(fuse(imported, device.target), {}, device.target, own / "model.so")
        else:
            build_library(fuse_untuned(imported, device.target), device.target, own / "model.so")
        (own / "manifest.json").write_text(manifest_of(imported, device.target).to_json())
    return folder / "tuned"


def manifest_of(imported: RelaxModel, target: str) -> Manifest:
    """Return the manifest of an imported model for one thread."""
    return Manifest(
        *("net", "sha", target, "cafe", imported.inputs, imported.outputs, 1, {}, 0.0),
        cache=imported.cache,
        no_cache=imported.no_cache,
    )


def elementwise(kind: str, dtype: int, shape: tuple[int, ...] = (2, 3), outputs: int = 1) -> bytes:
    """Return a model that computes the operator `kind` of its input `x` for each output."""
    nodes = [helper.make_node(kind, ["x"], [f"y{index}"]) for index in range(outputs)]
    values = [helper.make_tensor_value_info(f"y{index}", dtype, shape) for index in range(outputs)]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", dtype, shape)], values)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def sign_folder(folder: Path, key: SigningKey) -> None:
    """Sign a compiled model as publishing does."""
    manifest = Manifest.from_json((folder / "manifest.json").read_text())
    packed = io.BytesIO()
    with (folder / "model.so").open("rb") as library:
        digest = hashlib.file_digest(library, "sha256").hexdigest()
        write(packed, library, dataclasses.replace(manifest, library_sha256=digest), sign=key.sign)
    (folder / "packed.tar").write_bytes(packed.getvalue())
    unpack(folder / "packed.tar", folder)
    (folder / "packed.tar").unlink()
