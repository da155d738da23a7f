"""`tunefarm bench` and `tunefarm bundle`, on a model that was compiled here."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from core.exit_code import ExitCode
from tests.compiled_models import compile_model
from tests.onnx_models import residual
from tunefarm.cli.app import app, run
from tunefarm.cli.compiled import verdict
from tunefarm.comparison.contestants import Arrays, Call, OnnxRuntime
from tunefarm.comparison.turns import MIN_ROUNDS, Row, compare


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = compile_model(residual(), tmp_path_factory.mktemp("compiled") / "residual")
    (folder.parent / "residual.onnx").write_bytes(residual())
    return folder


def test_runtimes_take_turns_on_one_model(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(folder.parent / "residual.onnx")
    command = ["bench", str(folder), "--against", model, "--threads", "1", "--seconds", "1"]
    assert run(app, [*command, "--json"]) == ExitCode.OK
    result = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in result["rows"]] == ["tunefarm", "ONNX Runtime", "OpenVINO"]
    assert (result["threads"], result["rounds"] >= MIN_ROUNDS) == (1, True)
    for row in result["rows"]:
        assert row["error"] == ""
        assert 0 < row["p10_s"] <= row["median_s"] <= row["p90_s"]
        assert row["ratio_p10"] <= row["ratio"] <= row["ratio_p90"]
        assert row["load_s"] > 0
        assert row["peak_bytes"] > row["disk_bytes"] > 0
    assert result["rows"][0]["ratio"] == 1


@pytest.mark.slow_lane(seconds=5)
@pytest.mark.parametrize(
    ("ratio", "low", "high", "expected"),
    [
        (2.0, 1.8, 2.2, "2.00 times as fast as X, the fastest other runtime here"),
        (0.5, 0.45, 0.6, "slower than X, the fastest other runtime here: 2.00 times its latency"),
        (1000.0, 20.0, 1100.0, "(noisy: 20.00 to 1100.00 in 80% of the rounds; "),
        (0.9, 0.8, 3.0, "(noisy: 0.80 to 3.00 in 80% of the rounds; "),
    ],
)
def test_a_verdict_says_whether_it_can_be_trusted(
    ratio: float, low: float, high: float, expected: str
) -> None:
    text = verdict(Row("X", ratio=ratio, ratio_p10=low, ratio_p90=high))
    assert expected in text
    assert ("noisy" in text) == ("noisy" in expected)


def test_the_table_ends_with_a_verdict(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(folder.parent / "residual.onnx")
    assert run(app, ["bench", str(folder), "--against", model, "--threads", "1", "--seconds", "1"]) == 0
    # The verdict of noisy timings takes two lines.
    assert "the fastest other runtime here" in " ".join(capsys.readouterr().out.split())


def test_a_peer_that_fails_is_named_and_left_out(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    own, peer = compare(folder, [OnnxRuntime(broken)], threads=1, seconds=0).rows
    assert (own.error, own.ratio) == ("", 1)
    assert peer.error.startswith("ONNX Runtime can't run the model: ")
    assert peer.median_s == 0


@dataclass(frozen=True)
class Crashing:
    """A runtime whose process dies while it loads the model."""

    path: Path
    name: str = "crashing"

    def load(self, threads: int, inputs: Arrays) -> Call:
        os._exit(7)


@pytest.mark.slow_lane(seconds=5)
def test_a_dead_runtime_process_is_reported_at_once(folder: Path) -> None:
    _, peer = compare(folder, [Crashing(folder)], threads=1, seconds=0).rows
    assert peer.error == "crashing: its process has ended with exit code 7"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["bench", "nowhere"], "nowhere doesn't exist"),
        (["bundle", "nowhere", "new"], "nowhere/manifest.json can't be read"),
        (["bench", "FOLDER", "--against", "absent.onnx"], "there is no file absent.onnx"),
        (["bench", "FOLDER", "--against", "FOLDER/manifest.json"], "no runtime for .* is installed here"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    arguments: list[str],
    why: str,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code = run(app, [word.replace("FOLDER", str(folder)) for word in arguments])
    error = capsys.readouterr().err.strip()
    assert code == ExitCode.BAD_INPUT
    assert len(error.splitlines()) == 1
    assert re.search(why, error)


def test_a_bundle_explains_how_to_build_the_program(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = tmp_path / "bundle"
    assert run(app, ["bundle", str(folder), str(made)]) == ExitCode.OK
    assert f"cmake -S {made}" in capsys.readouterr().out
    assert (made / "lib" / "libtvm_runtime.so").exists()
