"""A model whose weights take 600 MB is compared with its untuned library and timed within its limit."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import numpy as np
import pytest

from compiler.importing.model import fuse, read_onnx
from compiler.packaging.artifact import Manifest, pack
from compiler.target import detect_device
from core.lease import Limits
from core.measurement import Measurement, Outcome
from tests.compiled import build_module
from tests.onnx_models import Builder
from worker.runner.executor import ChildConfig, Executor

SIZE, LAYERS = 6144, 4


@pytest.mark.slow_lane(seconds=16)
def test_a_large_model_is_compared_and_timed(tmp_path: Path) -> None:
    """Both libraries loaded together would take more than 2.9 times the artifact."""
    artifact = tmp_path / "artifact"
    artifact.write_bytes(_artifact(tmp_path / "model.so"))
    size = artifact.stat().st_size
    for limits in (Limits.for_module(size), Limits(memory_bytes=int(2.9 * size))):
        measurement = asyncio.run(_measured(artifact, limits))
        assert measurement.outcome is Outcome.OK, measurement.error


async def _measured(artifact: Path, limits: Limits) -> Measurement:
    executor = Executor(ChildConfig(2), os.environ)
    try:
        return await executor.measure_module(artifact, limits, compare=True)
    finally:
        await executor.close()


def _artifact(library: Path) -> bytes:
    """Large matrix products one after the other, packed with a library to compare with."""
    b = Builder()
    x = "input"
    for _ in range(LAYERS):
        weight = b.rng.standard_normal((SIZE, SIZE), dtype=np.float32) / np.float32(SIZE**0.5)
        x = b.op("Relu", b.op("MatMul", x, b.constant(weight)))
    device = detect_device(2)
    model = read_onnx(b.model({"input": [1, SIZE]}, {x: [1, SIZE]}), {})
    build_module(fuse(model, device.target), {}, device.target, library)
    manifest = Manifest(
        model_name="large",
        model_sha="0" * 64,
        target=device.target,
        device_class=device.key,
        inputs=model.inputs,
        outputs=model.outputs,
        threads=2,
        versions={},
        created_at=0.0,
    )
    return pack(library.read_bytes(), manifest, library.read_bytes())
