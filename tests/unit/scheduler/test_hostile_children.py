"""A model that compromised the compiler may send anything, but harms only its own job."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest

from compiler.children import inference
from compiler.children.models import ImportedModel
from compiler.importing.spec import ModelError, TensorSpec
from core.inference import Comparison
from core.job import JobState
from core.quantization import Quantization
from records.jobs import tasks
from tests.unit.scheduler.farm import CONV, MATMUL, Farm


def stored(farm: Farm, workload: str) -> str:
    with farm.database.begin() as session:
        return tasks.workload(session, workload)


@pytest.mark.parametrize("module", [CONV.module_json, "no module"])
def test_a_workload_of_other_models_is_not_replaced(farm: Farm, module: str) -> None:
    farm.plug_in()
    farm.submit("theirs")
    farm.finish("theirs")
    farm.compiler.tasks = (replace(MATMUL, module_json=module),)
    farm.submit("hostile")
    farm.tick()
    assert stored(farm, MATMUL.workload_hash) == MATMUL.module_json


def test_a_workload_with_another_hash_ends_the_job(farm: Farm) -> None:
    farm.plug_in()
    farm.compiler.tasks = (replace(CONV, workload_hash="123"),)
    farm.submit()
    job = farm.finish()
    assert job.state is JobState.FAILED
    assert "the compiler reported a wrong hash of the subgraph conv" in str(job.error)
    with pytest.raises(tasks.WorkloadNotFound):
        stored(farm, "123")


MODEL = ImportedModel((TensorSpec("x", (1, 3), "float32"),), (TensorSpec("y", (1, 3), "bool"),), (MATMUL,))


IMPOSSIBLE: dict[str, list[object]] = {
    "weight": [0, -1, 1.5, True, "3", None, float("nan"), 1 << 31, 10**30],
    "constants": [[-1], ["1"], [None], 3, [1 << 70]],
    "workload_hash": [None, 3, []],
    "variant_of": [None, "no such subgraph"],
    "dtype": ["", "float32 1\ninput y float32", "float 32", None, 3, "x" * 99],
    "shape": [[-1], ["a"], 3, [1e400], [float("nan")]],
    "name": [3],
    "computed_in": ["a\nb"],
    "is_onnx": ["yes"],
    "inputs": [None],
    "tasks": [{}],
}


@pytest.mark.parametrize(
    ("field", "value"), [(field, value) for field, values in IMPOSSIBLE.items() for value in values]
)
def test_implausible_replies_of_the_compile_child_are_rejected(field: str, value: object) -> None:
    whole: dict[str, Any] = asdict(MODEL)
    assert ImportedModel.from_json(whole) == MODEL
    task, spec = whole["tasks"][0], whole["inputs"][0]
    changed = next(part for part in (task, spec, whole) if field in part)
    changed[field] = value
    if field == "variant_of":
        task["variant"] = "winograd"
    with pytest.raises(msgspec.ValidationError):
        ImportedModel.from_json(whole)


CACHE: dict[str, Any] = {
    "position": "x",
    "capacity": 8,
    "count": 1,
    "buffers": {"x": 1},
    "tokens": {"x": 0},
    "outputs": {"y": 1},
}


@pytest.mark.parametrize(
    "changes",
    [
        {"position": "z"},
        {"capacity": 1},
        {"count": 0},
        {"buffers": {"z": 0}},
        {"buffers": {"x": 2}},
        {"tokens": {"x": -1}},
        {"outputs": {"x": 0}},
        {"moved": {"z": 0}},
    ],
)
def test_an_implausible_cache_is_refused(changes: dict[str, Any]) -> None:
    whole: dict[str, Any] = asdict(MODEL)
    ImportedModel.from_json({**whole, "cache": CACHE})
    with pytest.raises(msgspec.ValidationError):
        ImportedModel.from_json({**whole, "cache": {**CACHE, **changes}})


DIFFERENCE = {"name": "y", "elements": 3, "differing": 1, "largest": 0.5, "db": 60.0}
COMPARISON = {"outputs": [DIFFERENCE], "note": ""}
LAYER = {"name": "conv", "operator": "Conv", "kept": False, "own_db": 30.0, "total_db": None}
QUANTIZATION = {
    "quantize": "int8",
    "weights_only": False,
    "samples": 1,
    "compared": 1,
    "kept": 0,
    "outputs": [{"name": "y", "db": 30.0}],
    "layers": [LAYER],
}
NAN, HUGE = float("nan"), 10**30


@pytest.mark.parametrize(
    ("kind", "whole", "changes"),
    [
        (Comparison, COMPARISON, {"outputs": [DIFFERENCE] * 4097}),
        *((Comparison, COMPARISON, {"outputs": [{**DIFFERENCE, "elements": bad}]}) for bad in (HUGE, 0, NAN)),
        *((Comparison, COMPARISON, {"outputs": [{**DIFFERENCE, "db": bad}]}) for bad in (NAN, None, "1")),
        *((Quantization, QUANTIZATION, {"samples": bad}) for bad in (HUGE, -1, True)),
        *((Quantization, QUANTIZATION, {name: bad}) for name in ("kept", "narrow") for bad in (HUGE, -1)),
        *((Quantization, QUANTIZATION, {"compared": bad}) for bad in (HUGE, 0)),
        *((Quantization, QUANTIZATION, {"layers": [{**LAYER, "own_db": bad}]}) for bad in (NAN, 1e300)),
        (Quantization, QUANTIZATION, {"layers": [LAYER] * 2001}),
        (Quantization, QUANTIZATION, {"outputs": []}),
    ],
)
def test_an_implausible_report_is_refused(
    kind: type[Comparison] | type[Quantization], whole: dict[str, Any], changes: dict[str, Any]
) -> None:
    assert msgspec.convert(whole, kind).outputs
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**whole, **changes}, kind)


def test_a_huge_comparison_is_not_parsed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Lists of numbers take dozens of times the memory of their text."""

    @contextmanager
    def taken_over(*_given: object) -> Iterator[tuple[IO[bytes], int]]:
        yield io.BytesIO(b'{"outputs": []' + b" " * (5 << 20) + b"}"), 0

    monkeypatch.setattr(inference, "run_child", taken_over)
    (tmp_path / "inputs").touch()
    with (tmp_path / "inputs").open("rb") as file, pytest.raises(ModelError, match="failed"):
        inference.check_inputs(file, [])
