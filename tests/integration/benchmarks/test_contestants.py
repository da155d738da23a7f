"""Contestants in separate processes: a real ONNX Runtime and a real TVM build of the same model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.networks.tvm_builds import build_untuned
from benchmarks.timing.contestants import OnnxFile, OpenVinoFile, ProcessContestant, TvmLibrary, spawn_process
from benchmarks.timing.deviation import compare_outputs, random_inputs
from benchmarks.timing.interleaved import Block, measure
from compiler.importing.spec import ModelError
from compiler.packaging.artifact import ArtifactError
from compiler.target import detect_device
from examples import make_models

INPUTS = [random_inputs([((1, 3, 32, 32), "float32")], seed) for seed in range(2)]
SHORT = Block(warm_up_s=0.0, min_s=0.0, min_calls=2, max_calls=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "tiny.onnx"
    onnx.save(make_models.make("resnet18", tiny=True), path)
    return path


def _target() -> str:
    """Detect the target in another process, because TVM reads its number of threads only once."""
    with spawn_process() as process:
        return process.submit(detect_device).result().target


@pytest.mark.slow_lane
def test_an_untuned_build_takes_turns_and_agrees_with_onnxruntime(model: Path, tmp_path: Path) -> None:
    build_untuned(model, _target(), tmp_path / "untuned.so")
    with (
        ProcessContestant(TvmLibrary(tmp_path / "untuned.so"), 2, INPUTS[0]) as ours,
        ProcessContestant(OnnxFile(model), 2, INPUTS[0]) as theirs,
    ):
        timings = measure({"ours": ours, "theirs": theirs}, 2, SHORT, rest_s=0.0)
        assert all(0 < secs < 10 for each in timings.values() for secs in each.blocks)
        assert compare_outputs(ours, theirs, INPUTS).of_allowed < 1
        first, second = (theirs.outputs(each)[0] for each in INPUTS)
        assert first.shape == (1, 10)
        assert not np.allclose(first, second)


@pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO isn't installed: pip install '.[bench]'")
def test_openvino_agrees_with_onnxruntime(model: Path) -> None:
    with (
        ProcessContestant(OpenVinoFile(model), 2, INPUTS[0]) as ours,
        ProcessContestant(OnnxFile(model), 2, INPUTS[0]) as theirs,
    ):
        assert compare_outputs(ours, theirs, INPUTS).of_allowed < 1
        assert all(secs > 0 for secs in ours.time_block(SHORT))


@pytest.mark.skipif(find_spec("openvino") is None, reason="OpenVINO isn't installed: pip install '.[bench]'")
def test_openvino_reports_nothing_and_writes_nothing_into_the_users_home(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("CI", raising=False)
    (tmp_path / "home").mkdir()
    with ProcessContestant(OpenVinoFile(model), 1, INPUTS[0]) as one:
        assert one.outputs(INPUTS[0])[0].shape == (1, 10)
    assert not any((tmp_path / "home").iterdir())


def test_a_model_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(Exception, match=r"bad\.onnx"):
        ProcessContestant(OnnxFile(tmp_path / "bad.onnx"), 1, INPUTS[0])


@pytest.mark.slow_lane
def test_a_model_that_cannot_be_built_says_why(model: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError):
        build_untuned(tmp_path / "bad.onnx", "{}", tmp_path / "bad.so")
    with pytest.raises((ArtifactError, ValueError), match="target"):
        build_untuned(model, "{}", tmp_path / "bad.so")
    assert not (tmp_path / "bad.so").exists()
