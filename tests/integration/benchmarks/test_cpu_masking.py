"""Masked libraries see fewer instruction sets than the processor has."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.results import machine
from benchmarks.timing.contestants import OnnxFile, OpenVinoFile, ProcessContestant, spawn_process
from benchmarks.timing.cpu_masking import MaskedPackage, compile_cpuid_handler, mask, replace_cpuid
from benchmarks.timing.deviation import random_inputs
from examples import make_models

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="CPUID is an instruction of x86")

# The bytes of CPUID are a part of `decoy` too, as a number.
ASKS = """
#include <cpuid.h>
unsigned decoy(void) { return 0x11a20f22u; }
unsigned ask(unsigned leaf, unsigned part, int which) {
    unsigned found[4];
    __cpuid_count(leaf, part, found[0], found[1], found[2], found[3]);
    return found[which];
}
"""
B, C = 1, 2
AVX512F, AVX2, BMI2 = (7, 0, B, 1 << 16), (7, 0, B, 1 << 5), (7, 0, B, 1 << 8)
AVX, FMA, SSE42 = (1, 0, C, 1 << 28), (1, 0, C, 1 << 12), (1, 0, C, 1 << 20)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    source, library = tmp_path / "asks.c", tmp_path / "asks.so"
    source.write_text(ASKS)
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", "-o", library, source], check=True)
    return library


def _shown(library: Path, handler: Path | None, masks_avx: bool) -> tuple[set[tuple[int, ...]], int]:
    """Return the features that the library sees, and its decoy's result, from a separate process."""
    if handler is not None:
        assert ctypes.CDLL(str(handler)).tunefarm_hide(int(masks_avx)) == 0
    asks = ctypes.CDLL(str(library))
    asks.ask.restype = asks.decoy.restype = ctypes.c_uint
    features = (AVX512F, AVX2, BMI2, AVX, FMA, SSE42)
    return {each for each in features if asks.ask(*each[:3]) & each[3]}, asks.decoy()


@pytest.mark.parametrize(("masks_avx", "hidden"), [(False, {AVX512F}), (True, {AVX512F, AVX2, AVX, FMA})])
def test_a_library_sees_only_the_remaining_instruction_sets(
    library: Path, tmp_path: Path, masks_avx: bool, hidden: set[tuple[int, ...]]
) -> None:
    with spawn_process() as process:
        whole, decoy = process.submit(_shown, library, None, masks_avx).result()
    assert SSE42 in whole
    replace_cpuid(library)
    with spawn_process() as process:
        seen, same = process.submit(_shown, library, compile_cpuid_handler(tmp_path), masks_avx).result()
    assert seen == whole - hidden
    assert same == decoy == 0x11A20F22


def test_a_library_that_never_asks_is_refused(tmp_path: Path) -> None:
    source, library = tmp_path / "plain.c", tmp_path / "plain.so"
    source.write_text("int plain(void) { return 0; }")
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    with pytest.raises(RuntimeError, match=r"plain\.so never queries"):
        replace_cpuid(library)


@pytest.mark.slow_lane(seconds=13)
@pytest.mark.skipif("avx512f" not in machine.flags(), reason="the processor has no AVX-512 to hide")
def test_onnxruntime_uses_other_kernels_where_avx512_is_hidden(tmp_path: Path) -> None:
    """Other kernels sum in another order, so outputs are close but not equal."""
    file, inputs = tmp_path / "resnet18.onnx", random_inputs([((1, 3, 224, 224), "float32")], 0)
    onnx.save(make_models.make("resnet18"), file)
    masked = mask("onnxruntime", ("avx512f",), tmp_path)
    with (
        ProcessContestant(OnnxFile(file), 2, inputs) as whole,
        ProcessContestant(OnnxFile(file), 2, inputs) as again,
        ProcessContestant(OnnxFile(file, masked), 2, inputs) as less,
    ):
        expected, same, other = (one.outputs(inputs)[0] for one in (whole, again, less))
    np.testing.assert_array_equal(same, expected)
    assert (other != expected).any()
    np.testing.assert_allclose(other, expected, rtol=1e-3, atol=1e-4)


def _capabilities(masked: MaskedPackage | None) -> list[str]:
    """Return the types in which OpenVINO computes, from a separate process."""
    if masked is not None:
        masked.prepare()
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    import openvino

    found: list[str] = openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    return found


@pytest.mark.slow_lane(seconds=13)
@pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO isn't installed: pip install '.[bench]'")
@pytest.mark.skipif("avx512f" not in machine.flags(), reason="the processor has no AVX-512 to hide")
def test_openvino_doesnt_compute_in_bfloat16_where_avx512_is_hidden(tmp_path: Path) -> None:
    """Its convolutions give the same bits with vectors of any length."""
    masked = mask("openvino", ("avx512f",), tmp_path)
    file, inputs = tmp_path / "model.onnx", random_inputs([((1, 3, 32, 32), "float32")], 0)
    onnx.save(make_models.make("resnet18", tiny=True), file)
    with spawn_process() as process:
        assert "BF16" in process.submit(_capabilities, None).result()
    with spawn_process() as process:
        assert "BF16" not in process.submit(_capabilities, masked).result()
    with (
        ProcessContestant(OpenVinoFile(file), 2, inputs) as whole,
        ProcessContestant(OpenVinoFile(file, masked), 2, inputs) as less,
    ):
        np.testing.assert_allclose(less.outputs(inputs)[0], whole.outputs(inputs)[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("package", "feature"), [("onnxruntime", "neon"), ("absent", "avx512f")])
def test_only_known_features_can_be_masked(tmp_path: Path, package: str, feature: str) -> None:
    with pytest.raises(RuntimeError, match=f"{package} can't be told that the processor has no {feature}"):
        mask(package, (feature,), tmp_path)


def test_a_loaded_package_cannot_be_masked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", sys)
    with pytest.raises(RuntimeError, match="onnxruntime is loaded already"):
        MaskedPackage("onnxruntime", Path("copy"), Path("cpuid.so"), masks_avx=True).prepare()
