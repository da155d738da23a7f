"""`tunefarm verify` compares compiled libraries with their models."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from compiler.children.models import compile_untuned
from compiler.packaging.artifact import Manifest
from compiler.verifying.edges import EDGES
from core.exit_code import ExitCode
from tests.onnx_models import Builder
from tunefarm.cli.app import app, run

TARGET = '{"kind":"llvm","num-cores":1}'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a compiled model, and the model in `model.onnx`."""
    root = tmp_path_factory.mktemp("compiled")
    b = Builder()
    data = b.model({"x": [2, 3]}, {b.op("Relu", b.op("MatMul", "x", b.weight(3, 4))): [2, 4]})
    (root / "model.onnx").write_bytes(data)
    with (root / "model.so").open("w+b") as library:
        imported = compile_untuned(data, {}, TARGET, library)
    manifest = Manifest(
        *("model", "sha", TARGET, "class", imported.inputs, imported.outputs),
        threads=1,
        versions={},
        created_at=time.time(),
        computed_in=imported.computed_in,
    )
    (root / "manifest.json").write_text(manifest.to_json())
    return root


def verified(
    capsys: pytest.CaptureFixture[str], folder: Path, model: Path, *flags: str
) -> tuple[int, str, str]:
    code = run(app, ["verify", str(folder), "--against", str(model), *flags])
    return code, *capsys.readouterr()


def test_a_library_agrees_with_its_model(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "own.npz", x=np.arange(6, dtype=np.float32).reshape(2, 3))
    model = folder / "model.onnx"
    code, out, _ = verified(capsys, folder, model, "--inputs", str(tmp_path / "own.npz"), "--json")
    answer = json.loads(out)
    assert (code, answer["agrees"]) == (ExitCode.OK, True)
    names = [check["inputs"] for check in answer["checks"]]
    assert names[2:] == ["your inputs", *EDGES]


def test_another_model_differs(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = onnx.load(folder / "model.onnx")
    weight = np.frombuffer(other.graph.initializer[0].raw_data, np.float32) + 1
    other.graph.initializer[0].raw_data = weight.tobytes()
    onnx.save(other, tmp_path / "other.onnx")
    code, out, err = verified(capsys, folder, tmp_path / "other.onnx")
    assert code == ExitCode.BAD_INPUT
    assert "differ: output 0: its values are off by" in out
    assert "differ from" in err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"text", "is no .npz file"),
        ({"x": np.zeros((2, 4), np.float32)}, "has the inputs of no size"),
        ({"x": np.zeros((2, 3))}, "has the inputs of no size"),
        ({"y": np.zeros((2, 3), np.float32)}, "has the inputs of no size"),
    ],
)
def test_inputs_of_another_kind_are_refused(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    content: bytes | dict[str, np.ndarray],
    said: str,
) -> None:
    file = tmp_path / "own.npz"
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        np.savez(file, **content)  # type: ignore[arg-type]
    code, _, err = verified(capsys, folder, folder / "model.onnx", "--inputs", str(file))
    assert code == ExitCode.BAD_INPUT
    assert said in err


def test_a_model_with_other_inputs_is_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    b = Builder()
    (tmp_path / "other.onnx").write_bytes(b.model({"z": [4]}, {b.op("Relu", "z"): [4]}))
    code, _, err = verified(capsys, folder, tmp_path / "other.onnx")
    assert code == ExitCode.BAD_INPUT
    assert "the model has no input 'x'" in err


def test_a_crashing_library_is_reported_in_one_line(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It runs in a child process."""
    (tmp_path / "manifest.json").write_text((folder / "manifest.json").read_text())
    (tmp_path / "model.so").write_bytes(b"not a library")
    code, _, err = verified(capsys, tmp_path, folder / "model.onnx")
    assert code in (ExitCode.BAD_INPUT, ExitCode.LOCAL)
    assert len(err.splitlines()) == 1
