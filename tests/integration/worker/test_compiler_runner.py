"""The runner that a deployed child uses, with TVM."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import pytest

from compiler.codegen.nvcc import compiler_version
from compiler.target import detect_device
from compiler.workload import to_json
from core.device import cuda_platform
from core.measurement import Measurement, Outcome
from tests.workloads import matmul
from worker.runner.compiler_runner import CompilerRunner
from worker.runner.interface import BuildRequest, Exported

TARGET = detect_device(1).target
# The trace that leaves a workload as it is.
UNTOUCHED = "[[],[]]"


@pytest.fixture(scope="module")
def runner() -> CompilerRunner:
    return CompilerRunner(2)


def build_request(size: int, trace: str = UNTOUCHED, target: str = TARGET) -> BuildRequest:
    return BuildRequest(target, to_json(matmul(size, size, size)), trace, ())


def test_candidates_are_built_together_and_run_one_by_one(runner: CompilerRunner) -> None:
    notes: list[tuple[str, int]] = []
    requests = {
        3: build_request(8),
        4: build_request(8, "no trace"),
        5: build_request(16),
        6: build_request(16, target="nonsense"),
        7: build_request(16),
    }
    refused = runner.build(
        requests, lambda n: notes.append(("begun", n)), lambda n: notes.append(("ended", n))
    )
    assert set(refused) == {4, 6}
    for number in requests:
        assert notes.index(("begun", number)) < notes.index(("ended", number))
    assert len(notes) == 2 * len(requests)
    measurements = {number: runner.run(number, None) for number in (7, 6, 5, 4, 3)}
    outcomes = {number: measurement.outcome for number, measurement in measurements.items()}
    failed = {4: Outcome.BUILD_ERROR, 6: Outcome.BUILD_ERROR}
    assert outcomes == {3: Outcome.OK, 5: Outcome.OK, 7: Outcome.OK} | failed
    assert "nonsense" in measurements[6].error


def test_the_best_latency_known_reaches_the_timing(runner: CompilerRunner) -> None:
    runner.build({1: build_request(8), 2: build_request(8)}, lambda _: None, lambda _: None)
    assert len(runner.run(1, 1e-12).run_s) < len(runner.run(2, 1.0).run_s)


def test_nothing_is_compiled_while_candidates_run(
    runner: CompilerRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.build({1: build_request(12), 2: build_request(20)}, lambda _: None, lambda _: None)
    monkeypatch.delattr("compiler.measuring.builder.tvm.compile")
    assert [runner.run(number, None).outcome for number in (1, 2)] == [Outcome.OK, Outcome.OK]


def test_a_candidate_is_deleted_after_its_run(runner: CompilerRunner) -> None:
    runner.build({9: build_request(8)}, lambda _: None, lambda _: None)
    runner.run(9, None)
    with pytest.raises(KeyError):
        runner.run(9, None)


def test_an_exported_candidate_is_loaded_and_measured(runner: CompilerRunner, tmp_path: Path) -> None:
    requests = {
        1: replace(build_request(8), export=True),
        2: replace(build_request(8, "no trace"), export=True),
    }
    assert runner.build(requests, lambda _: None, lambda _: None) == [2]
    exported, refused = runner.export(1), runner.export(2)
    assert isinstance(exported, Exported)
    assert isinstance(refused, Measurement)
    assert (refused.outcome, exported.build_s > 0.0) == (Outcome.BUILD_ERROR, True)
    file = tmp_path / "library"
    file.write_bytes(exported.data)
    runner.build({3: replace(build_request(8), library=str(file))}, lambda _: None, lambda _: None)
    file.unlink()
    measurement = runner.run(3, None)
    assert measurement.outcome is Outcome.OK, measurement.error
    assert measurement.build_s == exported.build_s


def test_an_exported_candidate_is_not_run(runner: CompilerRunner) -> None:
    runner.build({1: replace(build_request(8), export=True)}, lambda _: None, lambda _: None)
    assert runner.run(1, None).outcome is Outcome.RUN_ERROR


@pytest.mark.slow
def test_a_runner_lists_its_link_platforms(runner: CompilerRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    own, own_with_gpus, *_ = runner.platforms().names
    assert own == platform.machine()
    assert own_with_gpus == cuda_platform(own, compiler_version())
    monkeypatch.setattr("compiler.packaging.linker.importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("system.host_compiler.shutil.which", lambda name: None)
    nowhere = runner.platforms()
    assert nowhere.names == ()
    assert "install gcc or clang" in nowhere.problems[0]
    assert "extra 'cross'" in nowhere.problems[1]
