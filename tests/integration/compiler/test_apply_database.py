"""TVM's own pass compiles a model with our exported schedules."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import relax, te, tirx
from tvm.s_tir.meta_schedule.database import JSONDatabase
from tvm.tirx import PrimFunc

from compiler.importing.model import ExtractedTask, extract_tasks, fuse, read_onnx
from compiler.lowering.trace import lower
from compiler.packaging.artifact import build_library
from compiler.packaging.metaschedule import RECORD_FILE, WORKLOAD_FILE, export_database
from compiler.reading.subgraph import UnsupportedSubgraph, read_dag
from compiler.target import detect_device
from compiler.variants.choice import VariantModel
from compiler.workload import from_json, normalise, to_json, workload_hash
from search.cost.model import CostModel
from search.policy import TuneContext, propose
from search.rules.space import generate
from tests.compiled import load_main
from tests.devices import DEVICE as A_DEVICE
from tests.onnx_models import residual, transposed

DEVICE = detect_device(cores=2)
WITH_VNNI = replace(A_DEVICE, features=(*A_DEVICE.features, "avx512_vnni"))


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
def test_the_documents_example_makes_a_model_of_the_variants_that_are_faster(
    variant_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    (tmp_path / "DIR").mkdir()
    for name, text in zip((WORKLOAD_FILE, RECORD_FILE), texts, strict=True):
        (tmp_path / "DIR" / name).write_text(text)
    (tmp_path / "resnet18.onnx").write_bytes(transposed())
    (tmp_path / "resnet18-tuned").mkdir()
    (tmp_path / "resnet18-tuned" / "manifest.json").write_text(json.dumps({"target": DEVICE.target}))
    monkeypatch.chdir(tmp_path)
    example = (Path(__file__).parents[3] / "docs" / "tvm.md").read_text().split("```python\n")[2]
    names: dict[str, Any] = {}
    exec(example.split("```")[0], names)
    scheduled = [
        one.name_hint
        for one, function in names["module"].functions_items()
        if isinstance(function, PrimFunc) and "tirx.is_scheduled" in (function.attrs or {})
    ]
    assert any(name.startswith("fused_subpixel") for name in scheduled) == (variant_s < 0.001)
    assert scheduled


def _largest() -> tvm.IRModule:
    """Return a maximum of each row, which begins with -inf, as in ONNX."""
    rows, k = te.placeholder((8, 64), name="rows"), te.reduce_axis((0, 64), name="k")
    largest = te.comm_reducer(lambda x, y: tirx.Max(x, y), lambda dtype: tirx.const(-math.inf, dtype))
    out = te.compute((8,), lambda i: largest(rows[i, k], axis=k), name="largest")
    return normalise(te.create_prim_func([rows, out]))


# Splits the loop of the maximum, and takes the maximum of each part first.
IN_PARTS = json.dumps(
    [
        [
            ["GetSBlock", [], ["largest", "main"], ["b0"]],
            ["GetLoops", ["b0"], [], ["l1", "l2"]],
            ["Split", ["l2", 4, 16], [True, False], ["l3", "l4"]],
            ["RFactor", ["l4"], [1], ["b5"]],
        ],
        [],
    ]
)


def _product() -> tuple[tvm.IRModule, str]:
    """Return a product of bytes, and a schedule with the intrinsic for its dot products."""
    a, b = te.placeholder((32, 64), "uint8", "a"), te.placeholder((32, 64), "int8", "b")
    k = te.reduce_axis((0, 64), name="k")
    products = te.compute(
        (32, 32), lambda i, j: te.sum(a[i, k].astype("int32") * b[j, k].astype("int32"), k), name="products"
    )
    module = normalise(te.create_prim_func([a, b, products]))
    dag = read_dag(module)
    sketches = tuple(one for one in generate(dag, WITH_VNNI) if any(stage.intrinsic for stage in one.stages))
    rng = np.random.default_rng(0)
    [best, *_] = propose(TuneContext(dag, sketches, WITH_VNNI), CostModel(), [], 1, rng, [])
    return module, lower(module, best.program, WITH_VNNI)


OPEN = """
import json, sys
from pathlib import Path
from tvm.target import Target
from tunefarm.tvm_database import file_database
from compiler.workload import from_json
from tunefarm.client import metaschedule_files
folder, target = Path(sys.argv[1]), Target(json.loads(sys.argv[2]))
database = file_database(folder)
for one in metaschedule_files.read(folder).workloads:
    assert database.query_schedule(from_json(one.module_json), target, "main") is not None
print(len(database))
"""


def test_intrinsics_and_maxima_in_parts_need_no_preparation_to_be_opened(tmp_path: Path) -> None:
    schedules = (_product(), (_largest(), IN_PARTS))
    assert "Tensorize" in schedules[0][1]
    texts = export_database(
        [_Stored(workload_hash(module), trace, target=WITH_VNNI.target) for module, trace in schedules],
        {workload_hash(module): to_json(module) for module, _ in schedules},
    )
    for name, text in zip((WORKLOAD_FILE, RECORD_FILE), texts, strict=True):
        (tmp_path / name).write_text(text)
    # A new process, because intrinsics stay registered. JSONDatabase refuses the first of these traces there.
    # It waits forever if one of its threads replays the second.
    command = [sys.executable, "-c", OPEN, str(tmp_path), WITH_VNNI.target]
    opened = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120)
    assert (opened.returncode, opened.stdout) == (0, "2\n")
