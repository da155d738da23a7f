"""Good and bad candidates are verified and timed on this machine."""

from __future__ import annotations

import dataclasses
import io
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import numpy as np
import onnx
import onnx.parser
import pytest
import tvm
from onnx import numpy_helper
from tvm import te
from tvm.script import tirx as T  # noqa: N812 - TVM's parser wants this name

import compiler.measuring.whole_models
from compiler.importing.model import RelaxModel, fuse, fuse_untuned, read_onnx
from compiler.importing.spec import TensorSpec
from compiler.measuring.builder import LLVM_FAULT, BuiltKernel, LocalBuilder
from compiler.measuring.runner import LocalRunner
from compiler.measuring.timing import MAX_REPEATS, MIN_REPEATS
from compiler.measuring.whole_models import MAX_TURN_REPEATS
from compiler.packaging.artifact import Manifest, build_library, open_artifact, pack
from compiler.target import detect_device
from compiler.workload import to_json
from core.measurement import Measurement, Outcome
from tests.compiled import build_module
from tests.marks import slow_lane_except
from tests.onnx_models import residual, two_outputs, unsteady
from tests.workloads import WORKLOADS, matmul, module

DEVICE = detect_device()
BUILDER = LocalBuilder(DEVICE.target)
# The trace of a schedule before any primitive is applied.
UNSCHEDULED = "[[],[]]"


@pytest.fixture(scope="module")
def runner() -> LocalRunner:
    return LocalRunner(DEVICE.target)


def _elementwise(compute: Callable[[Any], Any], dtype: str = "float32", size: int = 64) -> tvm.IRModule:
    data = te.placeholder((size,), dtype, name="data")
    return module([data, te.compute((size,), lambda i: compute(data[i]), name="result")])


def _measure(
    runner: LocalRunner,
    candidate: tvm.IRModule,
    workload: tvm.IRModule,
    constants: tuple[int, ...] = (),
    best_s: float | None = None,
) -> Measurement:
    """Run one workload's code as a candidate for another."""
    built = BUILDER.build(to_json(candidate), UNSCHEDULED)
    assert isinstance(built, BuiltKernel)
    return runner.run(built, to_json(workload), constants, best_s)


@pytest.mark.parametrize("name", slow_lane_except(WORKLOADS, *list(WORKLOADS)[::3], seconds=0.3))
def test_an_unscheduled_workload_is_right(runner: LocalRunner, name: str) -> None:
    workload = WORKLOADS[name]()
    measurement = _measure(runner, workload, workload)
    assert measurement.outcome is Outcome.OK, measurement.error
    assert 1 <= len(measurement.run_s) <= MAX_REPEATS
    assert measurement.build_s > 0


@pytest.mark.parametrize(
    "trace",
    [
        "",
        "nonsense",
        "[]",
        "null",
        '[["Unknown", [], [], []]]',
        '[[["GetSBlock",[],["no","main"],["b0"]]],[]]',
    ],
)
def test_a_wrong_trace_is_a_build_error(trace: str) -> None:
    measurement = BUILDER.build(to_json(matmul(8, 8, 8)), trace)
    assert isinstance(measurement, Measurement)
    assert measurement.outcome is Outcome.BUILD_ERROR
    assert measurement.error


def test_the_message_says_that_llvm_is_at_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_wrongly(*_: Any, **__: Any) -> Any:
        raise RuntimeError("LLVM module verification failed with the following errors:\n%5 = shufflevector")

    monkeypatch.setattr("compiler.measuring.compiled_nests.compile_functions", compile_wrongly)
    measurement = LocalBuilder(DEVICE.target).build(to_json(matmul(8, 8, 8)), UNSCHEDULED)
    assert isinstance(measurement, Measurement)
    assert measurement.error.splitlines()[-1] == LLVM_FAULT


@pytest.mark.parametrize("text", ["", "{}", "nonsense", '{"nodes":[],"root_index":0}'])
def test_a_wrong_workload_is_a_build_error(text: str) -> None:
    measurement = BUILDER.build(text, UNSCHEDULED)
    assert isinstance(measurement, Measurement)
    assert measurement.outcome is Outcome.BUILD_ERROR
    assert measurement.error


def test_a_kernel_that_computes_something_else_is_caught(runner: LocalRunner) -> None:
    measurement = _measure(runner, _elementwise(lambda x: x + 1.0), _elementwise(lambda x: x + 2.0))
    assert measurement.outcome is Outcome.WRONG_RESULT
    assert measurement.error == "output 1 of large values: 64 of 64 values differ, by up to 1"
    assert measurement.run_s == ()


def test_a_kernel_that_leaves_a_part_undone_is_caught(runner: LocalRunner) -> None:
    @T.prim_func(s_tir=True)
    def main(data: T.Buffer((64,), "float32"), result: T.Buffer((64,), "float32")):
        for i in range(63):
            with T.sblock("result"):
                vi = T.axis.spatial(63, i)
                result[vi] = data[vi] * T.float32(0)

    measurement = _measure(runner, tvm.IRModule({"main": main}), _elementwise(lambda x: x * 0.0))
    assert measurement.outcome is Outcome.WRONG_RESULT
    assert measurement.error == "output 1 of large values: 1 of 64 values differ, by up to 113"


def test_a_kernel_that_adds_to_old_outputs_is_caught(runner: LocalRunner) -> None:
    @T.prim_func(s_tir=True)
    def main(data: T.Buffer((64,), "float32"), result: T.Buffer((64,), "float32")):
        for i in range(64):
            with T.sblock("result"):
                vi = T.axis.spatial(64, i)
                result[vi] = result[vi] + data[vi]

    measurement = _measure(runner, tvm.IRModule({"main": main}), _elementwise(lambda x: x * 1.0))
    assert measurement.outcome is Outcome.WRONG_RESULT


@pytest.mark.parametrize(
    ("dtype", "factor", "outcome"),
    [
        ("float32", 1.0000001, Outcome.OK),
        ("float32", 1.0001, Outcome.WRONG_RESULT),
        ("float64", 1.0001, Outcome.WRONG_RESULT),
        ("int32", 1, Outcome.OK),
        ("int32", 2, Outcome.WRONG_RESULT),
    ],
)
def test_results_may_differ_by_rounding_errors_only(
    runner: LocalRunner, dtype: str, factor: float, outcome: Outcome
) -> None:
    workload = _elementwise(lambda x: x * te.const(3, dtype), dtype)
    candidate = _elementwise(lambda x: x * te.const(3 * factor, dtype), dtype)
    assert _measure(runner, candidate, workload).outcome is outcome


def _overflowing(x: Any) -> Any:
    """Return infinity for one half of the inputs and zero for the other."""
    return te.exp(x * 1e4)


@pytest.mark.parametrize("compute", [te.sqrt, te.log, _overflowing])
def test_workloads_that_compute_infinity_or_nan_can_be_measured(
    runner: LocalRunner, compute: Callable[[Any], Any]
) -> None:
    workload = _elementwise(compute)
    assert _measure(runner, workload, workload).outcome is Outcome.OK


@pytest.mark.parametrize("compute", [te.sqrt, te.log, _overflowing])
def test_finite_values_beside_infinity_and_nan_are_compared(
    runner: LocalRunner, compute: Callable[[Any], Any]
) -> None:
    other = _elementwise(lambda x: compute(x) + 5.0)
    assert _measure(runner, other, _elementwise(compute)).outcome is Outcome.WRONG_RESULT


def test_a_constant_that_does_not_exist_is_a_run_error(runner: LocalRunner) -> None:
    workload = matmul(8, 8, 8)
    assert _measure(runner, workload, workload, constants=(7,)).outcome is Outcome.RUN_ERROR


@pytest.mark.parametrize("constants", [(), (0,), (1,), (0, 1)])
def test_constants_are_flushed_before_every_repeat(
    runner: LocalRunner, constants: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[list[tuple[int, ...]]] = []
    find = tvm.get_global_func

    def find_recorder(name: str) -> Any:
        if name != "cache_flush_cpu_non_first_arg":
            return find(name)
        return lambda _first, *arguments: flushed.append([tuple(a.shape) for a in arguments])

    monkeypatch.setattr(tvm, "get_global_func", find_recorder)
    workload = matmul(4, 8, 16)
    measurement = _measure(runner, workload, workload, constants)
    shapes = [[(4, 16), (16, 8)][i] for i in constants]
    assert measurement.outcome is Outcome.OK, measurement.error
    # One more: a first call finds out how many repeats there is time for.
    assert flushed == ([shapes] * (len(measurement.run_s) + 1) if constants else [])


def test_a_slow_kernel_is_timed_briefly_but_verified(runner: LocalRunner) -> None:
    workload = _elementwise(lambda x: x * 3.0)
    slow = _measure(runner, workload, workload, best_s=1e-12)
    assert (slow.outcome, len(slow.run_s)) == (Outcome.OK, MIN_REPEATS)
    wrong = _measure(runner, _elementwise(lambda x: x * 4.0), workload, best_s=1e-12)
    assert wrong.outcome is Outcome.WRONG_RESULT


def test_a_kernel_that_overwrites_inputs_affects_no_other_kernel(runner: LocalRunner) -> None:
    @T.prim_func(s_tir=True)
    def main(data: T.Buffer((64,), "float32"), result: T.Buffer((64,), "float32")):
        for i in range(64):
            with T.sblock("result"):
                vi = T.axis.spatial(64, i)
                result[vi] = data[vi] * T.float32(7)
        for i in range(64):
            with T.sblock("destroyed"):
                vi = T.axis.spatial(64, i)
                data[vi] = T.float32(0)

    workload = _elementwise(lambda x: x * 7.0)
    assert _measure(runner, tvm.IRModule({"main": main}), workload).outcome is Outcome.WRONG_RESULT
    assert _measure(runner, workload, workload).outcome is Outcome.OK
    assert _measure(runner, _elementwise(lambda x: x * 8.0), workload).outcome is Outcome.WRONG_RESULT
    assert _measure(runner, workload, workload).outcome is Outcome.OK


def test_flushing_leaves_the_constants_as_they_were(runner: LocalRunner) -> None:
    workload = matmul(8, 8, 8)
    for _ in range(2):
        assert _measure(runner, workload, workload, constants=(0, 1)).outcome is Outcome.OK


def test_an_unknown_target_is_refused() -> None:
    with pytest.raises(ValueError, match="not a target that TVM knows: nonsense"):
        LocalRunner("nonsense")


def test_only_a_machine_that_computes_nothing_fails_the_self_check(
    runner: LocalRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.self_check()
    monkeypatch.setattr(tvm, "compile", lambda *_, **__: {"main": lambda *_: None})
    with pytest.raises(RuntimeError, match="the probe kernel computed a wrong result on this machine"):
        runner.self_check()


def _library(model: RelaxModel) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.so"
        build_module(fuse(model, DEVICE.target), {}, DEVICE.target, path)
        return path.read_bytes()


def _untuned(model: RelaxModel) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.so"
        build_library(fuse_untuned(model, DEVICE.target), DEVICE.target, path)
        return path.read_bytes()


def _with_other_weights() -> RelaxModel:
    network = onnx.load_from_string(residual())
    for tensor in network.graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[::-1].copy(), tensor.name))
    return read_onnx(network.SerializeToString(), {})


def _artifact(
    inputs: tuple[TensorSpec, ...] | None = None,
    library: bytes | None = None,
    reference: bytes | None = None,
    **fields: Any,
) -> IO[bytes]:
    model = read_onnx(residual(), {})
    manifest = Manifest(
        model_name="tiny",
        model_sha="0" * 64,
        target=DEVICE.target,
        device_class=DEVICE.key,
        inputs=model.inputs if inputs is None else inputs,
        threads=1,
        versions={},
        created_at=0.0,
        **{"outputs": model.outputs, **fields},
    )
    return io.BytesIO(pack(_library(model) if library is None else library, manifest, reference))


def test_a_compiled_model_is_timed_end_to_end(runner: LocalRunner) -> None:
    measurement = runner.measure_module(_artifact(), compare=True)
    assert measurement.outcome is Outcome.OK, measurement.error
    assert 1 < len(measurement.run_s) <= MAX_TURN_REPEATS


@pytest.mark.slow
@pytest.mark.parametrize(("factor", "outcome"), [(2.5001, Outcome.OK), (-2.5, Outcome.WRONG_RESULT)])
def test_a_network_that_amplifies_rounding_errors_may_differ_as_much(
    runner: LocalRunner, factor: float, outcome: Outcome
) -> None:
    model = read_onnx(unsteady(9, 2.5), {})
    artifact = _artifact(
        model.inputs,
        _library(read_onnx(unsteady(9, factor), {})),
        _untuned(model),
        outputs=model.outputs,
        computed_in=model.computed_in,
    )
    measurement = runner.measure_module(artifact, compare=True)
    assert measurement.outcome is outcome, measurement.error


def test_a_models_memory_is_measured_again_in_each_turn(runner: LocalRunner) -> None:
    """The weights have 4 MiB, the outputs 8 MiB. Allocators keep memory of an earlier turn in reserve."""
    text = (
        '<ir_version: 9, opset_import: ["": 17]> g (float[2048, 1024] x) => (float[2048, 1024] y) '
        "{ y = MatMul(x, w) }"
    )
    parsed = onnx.parser.parse_model(text)
    weights = np.random.default_rng(0).standard_normal((1024, 1024), np.float32)
    parsed.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    model = read_onnx(parsed.SerializeToString(), {})
    artifact = _artifact(model.inputs, _library(model))
    footprints = [runner.measure_module(artifact, compare=False).footprint for _ in range(2)]
    for footprint in footprints:
        assert footprint is not None
        assert 11 << 20 <= footprint.memory_bytes < 20 << 20
        assert footprint.load_s > 0
    calls = runner.call_module(artifact, 0.0)
    assert isinstance(calls, tuple)
    began_s, ended_s, count = calls
    assert (count, began_s < ended_s) == (1, True)
    assert isinstance(runner.call_module(io.BytesIO(b"no archive"), 0.0), Measurement)


@pytest.mark.parametrize(
    ("call_s", "calls", "repeats"),
    [
        (1.0, 1, 1),
        (31.0, 1, 1),
        (0.9, 1 + 2, 2),
        (0.05, 2 + 6, 6),
        (0.001, 100 + 300, MAX_TURN_REPEATS),
    ],
)
def test_a_model_is_called_for_as_long_as_needed(
    runner: LocalRunner, monkeypatch: pytest.MonkeyPatch, call_s: float, calls: int, repeats: int
) -> None:
    """All calls on this machine take `call_s`."""
    made = 0

    def call(*_inputs: object) -> None:
        nonlocal made
        made += 1

    clock = SimpleNamespace(perf_counter=lambda: made * call_s)
    monkeypatch.setattr(compiler.measuring.whole_models, "time", clock)
    monkeypatch.setattr(runner, "_load_main", lambda _library: (call, 1e-3))
    measurement = runner.measure_module(_artifact(library=b"none"), compare=False)
    assert measurement.outcome is Outcome.OK, measurement.error
    assert abs(made - calls) <= 1  # sums of fractions
    assert len(measurement.run_s) in (repeats, min(repeats + 1, MAX_TURN_REPEATS))
    assert measurement.run_s == pytest.approx([call_s] * len(measurement.run_s))


def test_interruptions_do_not_count(runner: LocalRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call in ten takes a hundred times as long as the others."""
    now = 0.0
    made = 0

    def call(*_inputs: object) -> None:
        nonlocal now, made
        made += 1
        now += 0.01 if made % 10 == 0 else 1e-4

    clock = SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr(compiler.measuring.whole_models, "time", clock)
    monkeypatch.setattr(runner, "_load_main", lambda _library: (call, 1e-3))
    measurement = runner.measure_module(_artifact(library=b"none"), compare=False)
    assert measurement.latency_s == pytest.approx(1e-4)


@pytest.mark.parametrize(
    "make",
    [
        lambda: io.BytesIO(),
        lambda: io.BytesIO(b"no archive" * 100),
        lambda: _artifact(library=b"no library"),
        lambda: _artifact(inputs=()),
        lambda: _artifact(inputs=(TensorSpec("input", (1, 3, 9, 9), "float32"),)),
    ],
    ids=["empty", "no archive", "no library", "without inputs", "with inputs of another shape"],
)
def test_a_damaged_artifact_is_a_run_error(runner: LocalRunner, make: Callable[[], IO[bytes]]) -> None:
    measurement = runner.measure_module(make(), compare=True)
    assert measurement.outcome is Outcome.RUN_ERROR
    assert measurement.error


def test_a_model_that_agrees_with_its_reference_is_timed(runner: LocalRunner) -> None:
    measurement = runner.measure_module(
        _artifact(reference=_untuned(read_onnx(residual(), {}))), compare=True
    )
    assert measurement.outcome is Outcome.OK, measurement.error


def test_a_model_that_differs_from_its_reference_is_not_timed(runner: LocalRunner) -> None:
    measurement = runner.measure_module(_artifact(reference=_untuned(_with_other_weights())), compare=True)
    assert (measurement.outcome, measurement.run_s) == (Outcome.WRONG_RESULT, ())
    assert measurement.error.startswith(
        "not what the untuned model computes: output 0: its values are off by"
    )


def test_a_model_that_differs_for_large_inputs_only_is_not_timed(runner: LocalRunner) -> None:
    def model(node: str) -> RelaxModel:
        given = "<float low = {0.0}, float high = {6.0}>"
        text = (
            f'<ir_version: 9, opset_import: ["": 17]> g (float[64] x) => (float[64] y) {given} {{ {node} }}'
        )
        return read_onnx(onnx.parser.parse_model(text).SerializeToString(), {})

    unlimited, limited = model("y = Relu(x)"), model("y = Clip(x, low, high)")
    for library, outcome in ((limited, Outcome.OK), (unlimited, Outcome.WRONG_RESULT)):
        artifact = _artifact(unlimited.inputs, _library(library), _untuned(limited))
        assert runner.measure_module(artifact, compare=True).outcome is outcome


def test_a_model_that_is_wrong_after_many_calls_is_refused(
    runner: LocalRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = np.arange(8, dtype="float32")
    calls = 0

    def call(*_inputs: object) -> Any:
        nonlocal calls
        calls += 1
        return tvm.runtime.tensor(right if calls < 5 else right * 2)

    monkeypatch.setattr(runner, "_reference_outputs", lambda _, inputs: [[right] for _ in inputs])
    monkeypatch.setattr(runner, "_load_main", lambda _library: (call, 1e-3))
    measurement = runner.measure_module(_artifact(reference=b"some"), compare=True)
    assert measurement.outcome is Outcome.WRONG_RESULT
    assert "after several calls" in measurement.error


def test_a_model_is_compared_only_on_request(runner: LocalRunner) -> None:
    measurement = runner.measure_module(_artifact(reference=b"no library"), compare=False)
    assert measurement.outcome is Outcome.OK, measurement.error


def test_each_of_several_outputs_is_compared(runner: LocalRunner) -> None:
    model = read_onnx(two_outputs(), {})
    manifest = dataclasses.replace(open_artifact(_artifact())[1], inputs=model.inputs, outputs=model.outputs)
    measurement = runner.measure_module(
        io.BytesIO(pack(_library(model), manifest, _untuned(model))), compare=True
    )
    assert measurement.outcome is Outcome.OK, measurement.error


def test_a_reference_that_does_not_run_is_named(runner: LocalRunner) -> None:
    measurement = runner.measure_module(_artifact(reference=b"no library"), compare=True)
    assert measurement.outcome is Outcome.RUN_ERROR
    assert measurement.error.startswith("the untuned model, to compare with: ")
