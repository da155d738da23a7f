"""The bench that a deployed child uses, with TVM."""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import pytest

from compiler.target import detect_device
from compiler.workload import to_json
from core.measurement import Measurement, Outcome
from tests.workloads import matmul
from worker.runner.compiler_runner import CompilerRunner
from worker.runner.interface import BuildRequest, Exported

TARGET = detect_device(1).target
# The trace that leaves a workload as it is.
UNTOUCHED = "[[],[]]"


@pytest.fixture(scope="module")
def bench() -> CompilerRunner:
    return CompilerRunner(2)


def subject(size: int, trace: str = UNTOUCHED, target: str = TARGET) -> BuildRequest:
    return BuildRequest(target, to_json(matmul(size, size, size)), trace, ())


def test_candidates_are_built_together_and_then_run_one_by_one(bench: CompilerRunner) -> None:
    notes: list[tuple[str, int]] = []
    subjects = {
        3: subject(8),
        4: subject(8, "no trace"),
        5: subject(16),
        6: subject(16, target="nonsense"),
        7: subject(16),
    }
    refused = bench.build(
        subjects, lambda n: notes.append(("begun", n)), lambda n: notes.append(("ended", n))
    )
    assert set(refused) == {4, 6}
    for number in subjects:
        assert notes.index(("begun", number)) < notes.index(("ended", number))
    assert len(notes) == 2 * len(subjects)
    measurements = {number: bench.run(number, None) for number in (7, 6, 5, 4, 3)}
    outcomes = {number: measurement.outcome for number, measurement in measurements.items()}
    failed = {4: Outcome.BUILD_ERROR, 6: Outcome.BUILD_ERROR}
    assert outcomes == {3: Outcome.OK, 5: Outcome.OK, 7: Outcome.OK} | failed
    assert "nonsense" in measurements[6].error


def test_the_best_latency_known_reaches_the_timing(bench: CompilerRunner) -> None:
    bench.build({1: subject(8), 2: subject(8)}, lambda _: None, lambda _: None)
    assert len(bench.run(1, 1e-12).run_secs) < len(bench.run(2, 1.0).run_secs)


def test_nothing_is_compiled_while_candidates_run(
    bench: CompilerRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.build({1: subject(12), 2: subject(20)}, lambda _: None, lambda _: None)
    monkeypatch.delattr("compiler.measuring.runner.tvm.compile")
    assert [bench.run(number, None).outcome for number in (1, 2)] == [Outcome.OK, Outcome.OK]


def test_what_has_run_is_gone(bench: CompilerRunner) -> None:
    bench.build({9: subject(8)}, lambda _: None, lambda _: None)
    bench.run(9, None)
    with pytest.raises(KeyError):
        bench.run(9, None)


def test_what_it_exports_it_loads_and_measures(bench: CompilerRunner, tmp_path: Path) -> None:
    subjects = {1: replace(subject(8), export=True), 2: replace(subject(8, "no trace"), export=True)}
    assert bench.build(subjects, lambda _: None, lambda _: None) == [2]
    exported, refused = bench.export(1), bench.export(2)
    assert isinstance(exported, Exported)
    assert isinstance(refused, Measurement)
    assert (refused.outcome, exported.build_secs > 0.0) == (Outcome.BUILD_ERROR, True)
    file = tmp_path / "library"
    file.write_bytes(exported.data)
    bench.build({3: replace(subject(8), library=str(file))}, lambda _: None, lambda _: None)
    file.unlink()
    measurement = bench.run(3, None)
    assert measurement.outcome is Outcome.OK, measurement.error
    assert measurement.build_secs == exported.build_secs


def test_what_is_exported_is_not_run(bench: CompilerRunner) -> None:
    bench.build({1: replace(subject(8), export=True)}, lambda _: None, lambda _: None)
    assert bench.run(1, None).outcome is Outcome.RUN_ERROR


@pytest.mark.slow
def test_it_knows_for_which_machines_it_can_link(
    bench: CompilerRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert bench.machines().names[0] == platform.machine()
    monkeypatch.setattr("compiler.packaging.linker.importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("compiler.packaging.linker.shutil.which", lambda name: None)
    nowhere = bench.machines()
    assert nowhere.names == ()
    assert "install gcc or clang" in nowhere.problems[0]
    assert "extra 'cross'" in nowhere.problems[1]
