"""A model that compromises the compiler can't change the linker's cache for later models."""

from __future__ import annotations

import importlib.util
import io
import json
import os
import platform
from pathlib import Path

import pytest

from compiler.children.child import BASE_MEMORY_BYTES, run_child
from compiler.children.linking import linker_seed
from compiler.children.models import compile_tuned
from compiler.packaging.linker import zig_cache_folder
from sandbox.cache_seed import ZIG_CACHE
from tests.onnx_models import Builder

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
OTHER = "aarch64" if platform.machine() == "x86_64" else "x86_64"
TARGET = json.dumps({"kind": "llvm", "mtriple": f"{OTHER}-linux-gnu"})


@pytest.mark.slow_lane(seconds=24)
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="the extra 'cross' is not installed")
def test_a_poisoned_linker_cache_affects_no_other_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, (HERE, ROOT))))
    monkeypatch.setenv(ZIG_CACHE, str(tmp_path / "zig"))
    monkeypatch.setenv("PATH", str(tmp_path))  # without a cross compiler, which would link instead of zig
    assert zig_cache_folder(OTHER) is not None
    b = Builder()
    model = b.model({"x": [2, 3]}, {b.op("Relu", b.op("MatMul", "x", b.weight(3, 4))): [2, 4]})
    before, after = io.BytesIO(), io.BytesIO()
    compile_tuned(model, {}, TARGET, {}, before)
    request = json.dumps({"arch": OTHER, "folder": str(tmp_path)}).encode()
    seed = linker_seed(TARGET)
    with run_child("cache_poisoner", request, 300.0, BASE_MEMORY_BYTES, seed=seed) as (reply, status):
        done = json.load(reply)
    assert status == 0
    assert done["own"] > 0
    assert not done["links"], "it has harmed itself, so it would have harmed others that share its cache"
    assert done["others"] == 0, "the cache that others begin with"
    compile_tuned(model, {}, TARGET, {}, after)
    assert after.getvalue() == before.getvalue()
