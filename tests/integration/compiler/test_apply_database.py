"""TVM's own pass compiles a model with our exported schedules."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax
from tvm.s_tir.meta_schedule.database import JSONDatabase

from compiler.importing.model import ExtractedTask, extract_tasks, fuse, read_onnx
from compiler.lowering.trace import lower
from compiler.packaging.artifact import build_library
from compiler.packaging.metaschedule import export_database
from compiler.reading.subgraph import UnsupportedSubgraph, read_dag
from compiler.target import detect_device
from compiler.variants.choice import VariantModel
from compiler.workload import from_json
from search.cost.model import CostModel
from search.policy import TuneContext, propose
from search.rules.space import generate
from tests.compiled import load_main
from tests.onnx_models import residual, transposed
from tunefarm.tvm_database import tuned_model

DEVICE = detect_device(cores=2)


@dataclass(frozen=True)
class _Stored:
    workload_hash: str
    trace: str
    run_s: tuple[float, ...] = (0.001,)
    target: str = DEVICE.target


def _proposed(task: ExtractedTask) -> str | None:
    """Return the first schedule that the search would try."""
    module = from_json(task.module_json)
    try:
        dag = read_dag(module)
    except UnsupportedSubgraph:
        return None
    search_task = TuneContext(dag, generate(dag, DEVICE), DEVICE)
    rng = np.random.default_rng(0)
    proposals = propose(search_task, CostModel(), [], 1, rng, []) if search_task.sketches else []
    return lower(module, proposals[0].program, DEVICE) if proposals else None


@pytest.fixture(scope="module")
def fused() -> tvm.IRModule:
    return fuse(read_onnx(residual(size=16), {}), DEVICE.target)


@pytest.fixture(scope="module")
def traces(fused: tvm.IRModule) -> dict[str, str]:
    proposed = {task.workload_hash: _proposed(task) for task in extract_tasks(fused)}
    return {name: trace for name, trace in proposed.items() if trace is not None}


def _applied(fused: tvm.IRModule, traces: dict[str, str], folder: Path) -> tvm.IRModule:
    texts = export_database(
        [_Stored(name, trace) for name, trace in traces.items()],
        {task.workload_hash: task.module_json for task in extract_tasks(fused)},
    )
    for name, text in zip(("w.json", "r.json"), texts, strict=True):
        (folder / name).write_text(text)
    database = JSONDatabase(str(folder / "w.json"), str(folder / "r.json"), allow_missing=False)
    with tvm.target.Target(json.loads(DEVICE.target)), database:
        return relax.transform.MetaScheduleApplyDatabase(enable_warning=False)(fused)


def test_every_function_with_a_record_is_scheduled(
    fused: tvm.IRModule, traces: dict[str, str], tmp_path: Path
) -> None:
    applied = _applied(fused, traces, tmp_path)
    tasks = [task for task in extract_tasks(fused) if task.workload_hash in traces]
    assert len(tasks) >= 3
    names = [name for task in tasks for name in task.functions]
    assert all(applied[name].attrs["tirx.is_scheduled"] for name in names)
    # The best schedule of a small transposition may be the empty one.
    same = [name for name in names if tvm_ffi.structural_equal(applied[name].body, fused[name].body)]
    assert all("transpose" in name for name in same)


def test_scheduled_functions_are_not_tasks(
    fused: tvm.IRModule, traces: dict[str, str], tmp_path: Path
) -> None:
    left = {task.workload_hash for task in extract_tasks(_applied(fused, traces, tmp_path))}
    assert left == {task.workload_hash for task in extract_tasks(fused)} - set(traces)


@pytest.mark.slow
def test_the_applied_module_computes_the_same(
    fused: tvm.IRModule, traces: dict[str, str], tmp_path: Path
) -> None:
    data = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
    outputs = []
    for index, module in enumerate((fused, _applied(fused, traces, tmp_path))):
        path = tmp_path / f"model{index}.so"
        build_library(module, DEVICE.target, path)
        outputs.append(load_main(path)(tvm.runtime.tensor(data)).numpy())
    np.testing.assert_allclose(outputs[1], outputs[0], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("variant_s", [0.0005, 0.002])
def test_a_model_is_made_of_the_variants_that_are_faster(variant_s: float, tmp_path: Path) -> None:
    variants = VariantModel.of(read_onnx(transposed(), {}), DEVICE.target)
    tasks = {task.workload_hash: task for task in variants.tasks()}
    traces = {name: trace for name, task in tasks.items() if (trace := _proposed(task)) is not None}
    texts = export_database(
        [
            _Stored(name, trace, (variant_s if tasks[name].variant else 0.001,))
            for name, trace in traces.items()
        ],
        {name: task.module_json for name, task in tasks.items()},
    )
    for name, text in zip(("w.json", "r.json"), texts, strict=True):
        (tmp_path / name).write_text(text)
    database = JSONDatabase(str(tmp_path / "w.json"), str(tmp_path / "r.json"), allow_missing=False)
    model = tuned_model(transposed(), {}, DEVICE.target, database)
    [name] = (name for task in extract_tasks(model) for name in task.functions)
    assert name.startswith("fused_subpixel") == (variant_s < 0.001)
    with tvm.target.Target(json.loads(DEVICE.target)), database:
        applied = relax.transform.MetaScheduleApplyDatabase(enable_warning=False)(model)
    assert applied[name].attrs["tirx.is_scheduled"]
