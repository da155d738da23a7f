"""Fixtures for tests of the whole stack: a separate environment, and a model with few subgraphs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.onnx_models import residual
from tests.processes import OWN_PROFILES

ROOT = Path(__file__).parents[2]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("TUNEFARM_")}
    config = str(tmp_path / "no config.toml")
    return {
        **kept,
        **OWN_PROFILES,
        "PYTHONPATH": str(ROOT),
        "TUNEFARM_DATA": str(tmp_path / "data"),
        "TUNEFARM_CONFIG": config,
    }


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.onnx"
    path.write_bytes(residual())
    return path
