"""Figures of the cost of deploying a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.report.summary import deployment
from benchmarks.results.figures import Results
from benchmarks.runtime import installed
from benchmarks.runtime.__main__ import (
    INDUCTOR,
    INDUCTOR_TUNED,
    TUNEFARM,
    kernel_figures,
    load_figures,
    size_figures,
    torch_figures,
)
from benchmarks.timing.interleaved import Timings


def test_numpy_is_no_part_of_the_installed_size(tmp_path: Path) -> None:
    for name, bytes_ in (("numpy", 900), ("numpy-2.4.6.dist-info", 90), ("tvm_ffi", 30), ("bin", 9)):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "file").write_bytes(bytes(bytes_))
    (tmp_path / "site" / "single.py").write_bytes(bytes(2))
    assert installed.sizes(tmp_path / "site") == {"single.py": 2, "tvm_ffi": 30}
    (tmp_path / "bundle/lib").mkdir(parents=True)
    (tmp_path / "bundle/lib/libtvm_runtime.so").write_bytes(bytes(11_000_000))
    total, libraries, lines = size_figures({"a": 19_000_000, "b": 2_000_000}, tmp_path / "bundle")
    assert (total.value, total.unit, total.reached, total.note) == (21.0, "MB", False, "a 19, b 2")
    assert (libraries.value, libraries.reached) == (11.0, False)
    assert lines.reached is True


def test_the_kernels_own_time_is_no_overhead() -> None:
    timings = {
        "Python": Timings((9e-6, 12e-6, 10e-6)),
        "C": Timings((2e-6, 5e-6, 3e-6)),
        "kernel": Timings((1e-6, 4e-6, 2e-6)),
    }
    python, c = kernel_figures(timings)
    assert python.name == "one kernel: overhead of a call, from Python"
    assert (python.value, python.unit, python.reached) == (pytest.approx(8), "us", True)
    assert c.value == pytest.approx(1)
    assert c.note == "the kernel alone: 2 us"


def test_loading_leaves_the_import_out() -> None:
    [load] = load_figures("ResNet-18", [(0.2, 0.11, 0.03), (0.2, 0.13, 0.03), (0.2, 0.12, 0.03)])
    assert (load.value, load.reached) == (pytest.approx(120), False)
    assert load.note == "200 ms to import, 30 ms for the first call"


def test_torch_compile_is_compared_with_the_artifact_and_inductor() -> None:
    timings = {
        "artifact": Timings((0.010, 0.010)),
        TUNEFARM: Timings((0.0102, 0.0102)),
        INDUCTOR: Timings((0.0204, 0.0204)),
        INDUCTOR_TUNED: Timings((0.0051, 0.0051)),
    }
    compiled, artifact, plain, tuned = torch_figures("R", {"tunefarm": [21, 19], "inductor": [30]}, timings)
    assert (compiled.value, compiled.reached, compiled.note) == (20, True, "inductor: 30 s")
    assert (artifact.value, artifact.reached) == (pytest.approx(1.02), True)
    assert artifact.aim == "at most 1.03"
    assert [plain.value, tuned.value] == [pytest.approx(0.5), pytest.approx(2.0)]
    page = deployment(Results((compiled, artifact), "machine", "now", "command"))
    assert "| R: time of torch.compile, with known schedules | 20 s | at most 20: reached |" in page
    assert "not measured" in deployment(None)
