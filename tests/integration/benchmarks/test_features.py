"""Our description of programs against TVM's of the same programs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import features
from benchmarks.suite import OPERATORS
from compiler.target import detect_device

# What both take alike, but for what is inlined, which TVM counts where it is inlined. The buffers of copies
# are whole for us, and as small as what is copied for TVM.
ALIKE = ("floating point", "vectorized", "unrolled", "parallel", "gpu")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["GMM", "DEP"])
def test_both_mean_the_same(name: str) -> None:
    found = features.agreement(OPERATORS[name], detect_device(2), 12, 0)
    for group in ALIKE:
        assert found[group].mean() >= 0.75, group
    assert found["buffer 0: bytes"].mean() >= 0.75
    assert found["buffer 0: lines"].mean() >= 0.75


@pytest.mark.slow
def test_the_command_writes_a_figure_for_every_group(tmp_path: Path) -> None:
    path = tmp_path / "features.json"
    assert features.main(["--programs", "3", "--operator", "GMM", "--json", str(path)]) == 0
    named = {figure["name"] for figure in json.loads(path.read_text())["figures"]}
    assert "programs described alike: vectorized" in named
    assert "programs described alike: lines" in named
