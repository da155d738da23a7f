"""Figures of networks in several types."""

from __future__ import annotations

import pytest

from benchmarks import element_types
from benchmarks.element_types import Measured
from benchmarks.results import machine
from benchmarks.results.figures import Figure
from benchmarks.timing.interleaved import Timings


def figures(flags: frozenset[str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Figure]:
    monkeypatch.setattr(machine, "flags", lambda: flags)
    measured = {
        "float32": Measured(100, Timings((0.01, 0.012)), {"ONNX Runtime": Timings((0.02, 0.024))}, 1e-6),
        "int8": Measured(
            100,
            Timings((0.004, 0.0048)),
            {"ONNX Runtime": Timings((0.005, 0.006)), "OpenVINO": Timings((0.002, 0.0024))},
            0.02,
        ),
        "bfloat16": Measured(100, Timings((0.02, 0.024)), {}, 0.03),
    }
    return {each.name: each for each in element_types.figures_of("resnet18", measured)}


def test_each_type_is_compared_with_float32_and_the_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    found = figures(frozenset({"avx512_vnni"}), monkeypatch)
    ratio = found["resnet18: latency relative to float32, int8"]
    assert ratio.value == pytest.approx(0.4)
    assert (ratio.aim, ratio.reached) == ("at most 0.4", True)
    same_file = found["resnet18: latency relative to ONNX Runtime, int8"]
    assert same_file.value == pytest.approx(0.8)
    assert same_file.note == "ONNX Runtime on the same file: 5.5 ms"
    fastest = found["resnet18: latency relative to the fastest peer, int8"]
    assert fastest.value == pytest.approx(2)
    assert (fastest.note, fastest.aim, fastest.reached) == ("OpenVINO", "at most 1", False)
    assert found["resnet18: latency relative to float32, bfloat16"].value == pytest.approx(2)
    assert not any("relative to ONNX Runtime, bfloat16" in name for name in found)
    deviation = found["resnet18: largest difference relative to the largest output, bfloat16"]
    assert deviation.note == "outputs of ONNX Runtime in float32"


def test_bytes_have_no_aim_without_dot_products(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        figures(frozenset({"avx2"}), monkeypatch)["resnet18: latency relative to float32, int8"].aim is None
    )
