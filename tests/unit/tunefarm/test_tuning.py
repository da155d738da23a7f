"""`tunefarm.tune` turns models in this process into files."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tvm
from tvm import te, topi

import tunefarm
from core.job import JobState
from core.model_format import ModelFormat, recognise
from tunefarm.cli import tune as command
from tunefarm.client.values import JobRequest


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, bytes, JobRequest, Path | None]]:
    """The jobs that were run, instead of running them."""
    jobs: list[tuple[str, bytes, JobRequest, Path | None]] = []

    def run_job(tuning: command.Tuning, _: object) -> tuple[list[Any], list[Any]]:
        (path,) = tuning.files
        jobs.append((path.name, path.read_bytes(), tuning.request, tuning.output))
        return [SimpleNamespace(state=JobState.DONE)], [None]

    monkeypatch.setattr(command, "run_job", run_job)
    return jobs


def _tensors() -> list[te.Tensor]:
    a, b = te.placeholder((4, 4), name="a"), te.placeholder((4, 4), name="b")
    return [a, b, topi.matmul(a, b)]


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(_tensors(), id="tensor expressions"),
        pytest.param(te.create_prim_func(_tensors()), id="TIR function"),
        pytest.param(tvm.IRModule({"main": te.create_prim_func(_tensors())}), id="module"),
    ],
)
def test_tvm_modules_are_accepted(model: Any, ran: list[Any]) -> None:
    tunefarm.tune(model, trials=8, output=Path("here"))
    ((name, data, request, output),) = ran
    assert (name, recognise(io.BytesIO(data)), output) == ("module.json", ModelFormat.TVM, Path("here"))
    assert (request.trials, request.target) == (8, "native")


def test_a_file_is_the_users_own(tmp_path: Path, ran: list[Any]) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"model")
    tunefarm.tune(str(path), minutes=1.0, shapes={"x": [1, 3]}, exact=True)
    ((name, data, request, output),) = ran
    assert (name, data, output) == ("net.onnx", b"model", None)
    assert (request.minutes, request.shapes, request.exact) == (1.0, {"x": (1, 3)}, True)
    assert path.exists()


@pytest.mark.parametrize("model", [7, [], ["x"], None])
def test_anything_else_is_refused(model: Any, ran: list[Any]) -> None:
    with pytest.raises(TypeError, match="is no model: give"):
        tunefarm.tune(model)
    assert not ran


def test_a_module_of_pytorch_is_exported(ran: list[Any]) -> None:
    torch = pytest.importorskip("torch")
    module, inputs = torch.nn.Linear(4, 2), (torch.zeros(1, 4),)
    with pytest.raises(ValueError, match=r"call eval\(\)"):
        tunefarm.tune(module, inputs)
    with pytest.raises(TypeError, match="example inputs"):
        tunefarm.tune(module.eval())
    tunefarm.tune(module, inputs)
    tunefarm.tune(torch.export.export(module, inputs))
    assert [name for name, *_ in ran] == ["linear.pt2", "program.pt2"]
    assert {recognise(io.BytesIO(data)) for _, data, *_ in ran} == {ModelFormat.EXPORTED_PROGRAM}
