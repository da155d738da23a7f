"""Models whose schedules pack: libraries contain packed weights, and TVM's passes find the records."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import GenericConst
from tvm.relax import transform
from tvm.s_tir import Schedule
from tvm.s_tir.meta_schedule.database import JSONDatabase

from compiler.constants import packing
from compiler.importing.model import extract_tasks, fuse, read_onnx
from compiler.lowering.trace import trace_of
from compiler.measuring.builder import BuiltKernel, LocalBuilder
from compiler.measuring.runner import LocalRunner
from compiler.packaging.artifact import ArtifactError, build_library, schedule_module
from compiler.packaging.metaschedule import export_database, import_database
from compiler.target import detect_device
from compiler.workload import from_json, to_json
from core.measurement import Measurement, Outcome
from tests.compiled import build_module, load_main
from tests.marks import slow_lane_except
from tests.onnx_models import MODELS, Builder, residual
from tests.packing import pack, packed_everywhere, packed_twice, tile, with_constants
from tests.workloads import matmul

TARGET = '{"kind":"llvm","num-cores":2}'
DEVICE = detect_device(cores=2)
BUILDER = LocalBuilder(DEVICE.target)
WIDTH = 8


def _packing(fused: tvm.IRModule, width: int = WIDTH) -> dict[str, str]:
    """Return a trace that packs the constants, for every workload with constants."""
    traces = {
        t.workload_hash: packed_everywhere(from_json(t.module_json), width) for t in extract_tasks(fused)
    }
    return {name: trace for name, trace in traces.items() if trace is not None}


def _run(library: Path, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    result = load_main(library)(*(tvm.runtime.tensor(value) for value in inputs.values()))
    return [result.numpy()] if isinstance(result, tvm.runtime.Tensor) else [part.numpy() for part in result]


def _check(data: bytes, library: Path) -> None:
    """Check that the library computes what ONNX Runtime does."""
    rng = np.random.default_rng(2)
    specs = read_onnx(data, {}).inputs
    inputs = {spec.name: rng.standard_normal(spec.shape).astype(spec.dtype) for spec in specs}
    session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    for output, expected in zip(_run(library, inputs), session.run(None, inputs), strict=True):
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)


def _constants(mod: tvm.IRModule) -> list[tuple[int, ...]]:
    """Return the shapes of the different constants in a module's `main`."""
    found: dict[GenericConst, tuple[int, ...]] = {}
    relax.analysis.post_order_visit(
        mod["main"],
        lambda e: found.setdefault(e, tuple(e.value.shape)) if isinstance(e, GenericConst) else None,
    )
    return sorted(found.values())


def _shared(widths: int) -> bytes:
    """Return a model in which products of 4, 5, ... rows share one weight."""
    builder = Builder()
    weight = builder.weight(64, 96)
    names = [f"input{i}" for i in range(widths)]
    results = [builder.op("MatMul", name, weight) for name in names]
    return builder.model(
        {name: [4 + i, 64] for i, name in enumerate(names)},
        {result: [4 + i, 96] for i, result in enumerate(results)},
    )


@pytest.mark.parametrize("name", slow_lane_except(sorted(MODELS), "residual"))
def test_a_model_with_packed_weights_computes_the_same(name: str, tmp_path: Path) -> None:
    data = MODELS[name]()
    fused = fuse(read_onnx(data, {}), TARGET)
    schedules = _packing(fused)
    assert bool(schedules) == any(task.constants for task in extract_tasks(fused))
    build_module(fused, schedules, TARGET, tmp_path / "model.so")
    _check(data, tmp_path / "model.so")


def test_the_library_holds_packed_weights_only() -> None:
    fused = fuse(read_onnx(residual(), {}), TARGET)
    plain = _constants(fused)
    module = schedule_module(fused, _packing(fused), TARGET)
    expected = [(-(-shape[-1] // WIDTH), *shape[:-1], WIDTH) for shape in plain]
    assert _constants(module) == sorted(expected)
    assert not any(name.name_hint.endswith(packing.PACKING_SUFFIX) for name, _ in module.functions_items())


def test_a_weight_that_is_packed_once_is_stored_once() -> None:
    builder = Builder()
    weight = builder.weight(16, 24)
    results = [builder.op("MatMul", name, weight) for name in ("left", "right")]
    data = builder.model({"left": [4, 16], "right": [4, 16]}, {result: [4, 24] for result in results})
    fused = fuse(read_onnx(data, {}), TARGET)
    assert _constants(schedule_module(fused, _packing(fused), TARGET)) == [(3, 16, 8)]


def test_a_weight_that_is_packed_in_two_ways_is_stored_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _shared(2)
    fused = fuse(read_onnx(data, {}), TARGET)
    first, second = (task.workload_hash for task in extract_tasks(fused))
    schedules = {first: _packing(fused, 16)[first], second: _packing(fused, 8)[second]}
    build_module(fused, schedules, TARGET, tmp_path / "model.so")
    _check(data, tmp_path / "model.so")
    assert _constants(schedule_module(fused, schedules, TARGET)) == [(6, 64, 16), (12, 64, 8)]


def test_a_weight_that_is_also_read_unpacked_stays(tmp_path: Path) -> None:
    data = _shared(2)
    fused = fuse(read_onnx(data, {}), TARGET)
    schedules = dict(list(_packing(fused).items())[:1])
    build_module(fused, schedules, TARGET, tmp_path / "model.so")
    _check(data, tmp_path / "model.so")
    assert _constants(schedule_module(fused, schedules, TARGET)) == [(12, 64, 8), (64, 96)]


def test_weights_are_packed_here_for_another_device() -> None:
    fused = fuse(read_onnx(residual(), {}), TARGET)
    target = '{"kind":"llvm","mtriple":"aarch64-linux-gnu"}'
    packed = schedule_module(fused, _packing(fused), target)
    assert _constants(packed) == _constants(schedule_module(fused, _packing(fused), TARGET))


def test_packing_that_can_not_be_split_off_is_an_artifact_error(tmp_path: Path) -> None:
    fused = fuse(read_onnx(_shared(1), {}), TARGET)
    (task,) = extract_tasks(fused)
    schedules = {task.workload_hash: packed_twice(from_json(task.module_json), "matmul", 1)}
    with pytest.raises(ArtifactError, match="the model's constants can't be packed"):
        build_module(fused, schedules, TARGET, tmp_path / "model.so")


@dataclass(frozen=True)
class _Stored:
    workload_hash: str
    trace: str
    run_s: tuple[float, ...] = (0.001,)
    target: str = TARGET


def test_tvms_passes_find_the_exported_records_and_pack(tmp_path: Path) -> None:
    data = residual()
    fused = fuse(read_onnx(data, {}), TARGET)
    schedules = _packing(fused)
    workloads = {task.workload_hash: task.module_json for task in extract_tasks(fused)}
    texts = export_database([_Stored(*pair) for pair in schedules.items()], workloads)
    assert {record.workload_hash for record in import_database(*texts)} == set(schedules)
    files = [tmp_path / name for name in ("workloads.json", "records.json")]
    for file, content in zip(files, texts, strict=True):
        file.write_text(content)
    with tvm.target.Target(json.loads(TARGET)), JSONDatabase(*map(str, files), allow_missing=False):
        applied = transform.MetaScheduleApplyDatabase(enable_warning=False)(fused)
        applied = transform.SplitLayoutRewritePreproc()(applied)
        applied = transform.FoldConstant()(applied)
    assert len(_constants(applied)) == len(_constants(fused))
    assert all(shape[-1] == WIDTH for shape in _constants(applied))
    build_library(applied, TARGET, tmp_path / "model.so")
    _check(data, tmp_path / "model.so")


@pytest.fixture(scope="module")
def runner() -> LocalRunner:
    return LocalRunner(DEVICE.target)


def _candidate(workload: tvm.IRModule) -> str:
    """Return a trace that packs in vectors of 16 and tiles accordingly."""
    sch = Schedule(workload, debug_mask="none")
    block = sch.get_sblock("T_matmul")
    pack(sch, block, workload["main"].params[1], 16)
    tile(sch, block, 1, 16)
    return trace_of(sch)


def _measured(runner: LocalRunner, workload: tvm.IRModule, trace: str) -> tuple[BuiltKernel, Measurement]:
    built = BUILDER.build(to_json(workload), trace)
    assert isinstance(built, BuiltKernel), built
    return built, runner.run(built, to_json(workload), (1,))


@pytest.mark.parametrize("columns", [64, 50])
def test_a_candidate_that_packs_is_measured_on_packed_constants(
    runner: LocalRunner, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[tuple[int, ...]] = []
    find = tvm.get_global_func
    monkeypatch.setattr(
        "compiler.measuring.runner.tvm.get_global_func",
        lambda name: (
            (lambda _first, *rest: flushed.extend(tuple(tensor.shape) for tensor in rest))
            if name == "cache_flush_cpu_non_first_arg"
            else find(name)
        ),
    )
    workload = with_constants(matmul(8, columns, 32), [1])
    built, measurement = _measured(runner, workload, _candidate(workload))
    assert measurement.outcome is Outcome.OK, measurement.error
    assert built.packed_constants is not None
    assert set(flushed) == {(4, 32, 16)}


def test_candidates_that_pack_are_built_side_by_side() -> None:
    workload = with_constants(matmul(8, 64, 32), [1])
    trace = _candidate(workload)
    with ThreadPoolExecutor(4) as pool:
        built = list(pool.map(lambda _: BUILDER.build(to_json(workload), trace), range(8)))
    assert all(isinstance(one, BuiltKernel) and one.packed_constants for one in built)


def test_packing_of_a_variable_argument_is_timed(runner: LocalRunner) -> None:
    workload = with_constants(matmul(8, 64, 32), [])
    built, measurement = _measured(runner, workload, _candidate(workload))
    assert measurement.outcome is Outcome.OK, measurement.error
    assert built.packed_constants is None


def test_packing_that_can_not_be_split_off_is_a_build_error() -> None:
    workload = with_constants(matmul(8, 64, 32), [1])
    measurement = BUILDER.build(to_json(workload), packed_twice(workload, "T_matmul", 1))
    assert isinstance(measurement, Measurement)
    assert measurement.outcome is Outcome.BUILD_ERROR


def test_wrongly_packed_constants_are_caught(runner: LocalRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = with_constants(matmul(8, 64, 32), [1])
    built = BUILDER.build(to_json(workload), _candidate(workload))
    assert isinstance(built, BuiltKernel)
    skipped = dataclasses.replace(built, pack=lambda *arguments: None)
    monkeypatch.setattr("tvm.runtime.empty", lambda shape, *_: tvm.runtime.tensor(np.ones(shape, "float32")))
    measurement = runner.run(skipped, to_json(workload), constants=(1,))
    assert measurement.outcome is Outcome.WRONG_RESULT
