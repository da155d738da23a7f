"""The example plug-in, installed by pip, in the scheduler and on a worker."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax

from compiler.importing.model import extract_tasks, fuse, read_onnx
from compiler.lowering.trace import LoweringError, lower, replay
from compiler.measuring.builder import LocalBuilder
from compiler.measuring.runner import LocalRunner
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device
from compiler.variants.choice import VariantModel
from compiler.workload import from_json
from core.job import JobState
from core.lease import Limits
from core.measurement import Measurement, Outcome
from records.jobs import tasks, trials
from records.storage.database import Database
from scheduler.spaces import sketches_of
from search.programs.annotate import sample
from search.programs.program import Program
from search.sketches import intrinsics
from system import plugins
from tests.integration.scheduler.local_job import Device, finish, submit
from tests.onnx_models import Builder
from tests.services import sqlite
from worker.runner.executor import CPU_RUNNER, ChildConfig, Executor
from worker.runner.interface import BuildRequest

ROOT = Path(__file__).parents[3]
NAME = "tunefarm_example.v1_0.dot_8x4"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, folder = tmp_path_factory.mktemp("source") / "plugin", tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "examples" / "plugin", source)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    command += ["--no-build-isolation", "--disable-pip-version-check", "--target", str(folder), str(source)]
    subprocess.run(command, check=True, timeout=120)
    return folder


@pytest.fixture(autouse=True)
def forgets() -> Iterator[None]:
    """Remove what a plug-in has registered in this process after each test."""
    known = list(intrinsics.INTRINSICS)
    plugins.extensions.cache_clear()
    yield
    plugins.extensions.cache_clear()
    intrinsics.INTRINSICS[:] = known
    intrinsics.BY_NAME.pop(NAME, None)
    for module in [name for name in sys.modules if name.startswith("tunefarm_example")]:
        del sys.modules[module]


@pytest.fixture
def plugin(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(installed))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(installed), *filter(None, sys.path)]))


def product() -> bytes:
    b = Builder()
    return b.model({"x": [64, 64]}, {b.op("MatMul", "x", b.weight(64, 64)): [64, 64]})


def workload() -> str:
    device = detect_device()
    (task,) = extract_tasks(fuse(read_onnx(product(), {}), device.target))
    return task.module_json


def programs(wanted: str) -> list[Program]:
    """Return a program of each sketch that has this text in its key."""
    device = detect_device()
    rng = np.random.default_rng(0)
    found = [one for one in sketches_of(read_dag(from_json(workload())), device) if wanted in one.key]
    drawn = (sample(sketch, 64, rng) for sketch in found)
    return [population.program(0) for population in drawn if len(population)]


@pytest.mark.usefixtures("plugin")
@pytest.mark.parametrize("wanted", ["matmul SRS", NAME])
def test_the_plug_ins_extensions_compute_right_results(wanted: str) -> None:
    text, target = workload(), detect_device().target
    found = programs(wanted)
    assert found
    for program in found:
        trace = lower(from_json(text), program, detect_device())
        assert (NAME in trace) == (wanted == NAME)
        built = LocalBuilder(target).build(text, trace)
        measured = LocalRunner(target).run(built, text, (1,))  # type: ignore[arg-type]
        assert (measured.outcome, measured.error) == (Outcome.OK, "")


def test_without_the_plugin_there_are_no_example_rules_and_intrinsics() -> None:
    assert programs("matmul SRS") == programs(NAME) == []


@pytest.mark.usefixtures("plugin")
@pytest.mark.slow_lane(seconds=10)
@pytest.mark.timeout(900)
def test_a_job_is_tuned_with_the_plug_in(tmp_path: Path) -> None:
    database = Database(sqlite(tmp_path / "tunefarm.db"))
    submit(database, product())
    job = finish(database, Device(database))
    assert (job.state, job.error) == (JobState.DONE, None)
    with database.begin() as session:
        measured = trials.measured(session, "job")
        [variant] = [task for task in tasks.for_job(session, "job") if task.variant]
    assert measured
    assert (variant.variant, variant.covered) == ("transposed", True)
    assert variant.best_s
    database.close()


@pytest.mark.usefixtures("plugin")
def test_a_worker_with_the_plug_in_measures_and_one_without_names_it(
    installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = workload()
    trace = lower(from_json(text), programs(NAME)[0], detect_device())
    request = BuildRequest(detect_device().target, text, trace, (1,))
    with_plugin, without = str(installed), ""

    assert measure(request, with_plugin).outcome is Outcome.OK
    refused = measure(request, without)
    assert refused.outcome is Outcome.BUILD_ERROR
    assert (
        "needs 'dot_8x4' of the plug-in tunefarm_example 1.0, and this machine hasn't got it" in refused.error
    )


def measure(request: BuildRequest, path: str) -> Measurement:
    """Measure in a worker's child that finds packages at `path`."""

    async def measured() -> Measurement:
        executor = Executor(ChildConfig(1, CPU_RUNNER), {**os.environ, "PYTHONPATH": path})
        try:
            return await executor.measure(request, Limits())
        finally:
            await executor.close()

    return asyncio.run(measured())


@pytest.mark.usefixtures("plugin")
def test_a_variant_replaces_its_kernel_and_a_worker_without_the_plug_in_measures_it() -> None:
    device, model = detect_device(), read_onnx(product(), {})
    variants = VariantModel.of(model, device.target)
    own, other = variants.tasks()
    assert (other.variant, other.variant_of) == ("transposed", own.workload_hash)
    chosen = variants.choose([other.workload_hash])
    assert [task.workload_hash for task in extract_tasks(chosen)] == [other.workload_hash]
    image = tvm.runtime.tensor(np.random.default_rng(0).standard_normal((64, 64), np.float32))
    found, expected = (
        relax.VirtualMachine(relax.build(each, tvm.target.Target("llvm")), tvm.cpu())["main"](image).numpy()
        for each in (chosen, variants.fused)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    module = from_json(other.module_json)
    [sketch, *_] = sketches_of(read_dag(module), device)
    trace = lower(module, sample(sketch, 1, np.random.default_rng(0)).program(0), device)
    measured = measure(BuildRequest(device.target, other.module_json, trace, other.constants), "")
    assert (measured.outcome, measured.error) == (Outcome.OK, "")


@pytest.mark.usefixtures("plugin")
def test_another_version_is_named() -> None:
    other = NAME.replace("v1_0", "v1_2")
    trace = f'[[["GetSBlock",[],["C","main"],["b0"]],["Tensorize",["b0"],["{other}",0],[]]],[]]'
    with pytest.raises(
        LoweringError, match=r"tunefarm_example 1\.2, and this machine has version 1\.0 of it"
    ):
        replay(from_json(workload()), trace)


def test_a_plug_in_that_cannot_be_loaded_is_named(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(installed, tmp_path / "site")
    (tmp_path / "site" / "tunefarm_example" / "rule.py").write_text("raise ValueError('unfinished')")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(
        plugins.PluginError, match=r"tunefarm-example 1\.0 can't be loaded .*unfinished.*pip uninst"
    ):
        sketches_of(read_dag(from_json(workload())), detect_device())
