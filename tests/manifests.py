"""A manifest of an artifact."""

from __future__ import annotations

from compiler.importing.spec import TensorSpec
from compiler.packaging.artifact import (
    Manifest,
    TaskEntry,
)

TARGET = '{"kind":"llvm","num-cores":2}'


MANIFEST = Manifest(
    model_name="tiny",
    model_sha="ab" * 32,
    target=TARGET,
    device_class="0123456789abcdef",
    inputs=(TensorSpec("input", (1, 3, 8, 8), "float32"),),
    outputs=(TensorSpec("output", (1, 10), "float32"),),
    threads=2,
    versions={"apache-tvm": "0.27.0.post1"},
    created_at=1700000000.0,
    tasks=(TaskEntry("123", "conv2d", 2, "[[], []]", 0.001, "trial"), TaskEntry("4", "transpose", 1)),
    untuned_s=(0.3, 0.31),
    tuned_s=(0.01,),
)
