"""Conversion between messages and values: valid ones survive, invalid ones raise clear errors."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import replace

import pytest

from core.device import Device, Gpu
from core.lease import Candidate, Lease, LeaseId, Limits, ModuleRun
from core.measurement import Built, Footprint, Measurement, Outcome, Resources
from core.worker import MAX_HEALTH_ERROR_CHARS, DesiredState, Role, Vitals, WorkerState
from proto import convert
from proto import fleet_pb2 as pb
from proto.convert import ProtocolMismatchError, WireError, library_from_wire, library_to_wire
from proto.messages import LibraryUpload, Result, SyncResponse, WorkerReport

DEVICE = Device(
    name="a board",
    triple="aarch64-linux-gnu",
    mcpu="cortex-a72",
    features=("neon", "fp16"),
    cores=4,
    vector_bytes=16,
    l1_bytes=32768,
    l2_bytes=1 << 20,
    l3_bytes=1 << 20,
    toolchain="tvm 0.27",
    target='{"kind":"llvm"}',
)
PROFILE = json.loads(DEVICE.speeds.to_json())
HELD = LeaseId("lease-1", 1)
FOOTPRINT = Footprint(0.01, 1 << 40, 0.5)
OK = Measurement(Outcome.OK, (1e-3, 1.1e-3), 0.03, "", Resources(84, 0), FOOTPRINT, 0.9)
REPORT = WorkerReport(
    "board", "s1", True, WorkerState.READY, DEVICE, HELD, (Result(7, HELD, OK, trial_id=3),), 16, 20.0
)
SHA = hashlib.sha256(b"code").hexdigest()
CANDIDATES = (
    Candidate(3, "ab12", "[]", (1, 2)),
    Candidate(4, "ab12", "[]", best_s=1e-3),
    Candidate(5, "ab12", "[]", library_sha=SHA),
)
LEASE = Lease(HELD, '{"kind":"llvm"}', Limits(), 30.0, CANDIDATES, model_bytes=46_800_000)
MODULE_RUNS = (
    ModuleRun(4, "untuned", "c0ffee"),
    ModuleRun(6, "published", "c0de"),
    ModuleRun(5, "tuned", "decade", compare=True),
    ModuleRun(7, "onnxruntime", "0dd", shapes='{"x": [1, 3]}'),
)


def wire_report(**changes: object) -> pb.SynchronizeRequest:
    message = convert.report_to_wire(REPORT)
    for field, value in changes.items():
        setattr(message, field, value)
    return message


@pytest.mark.parametrize("outcome", list(Outcome))
def test_every_outcome_survives_conversion(outcome: Outcome) -> None:
    measurement = OK if outcome is Outcome.OK else Measurement(outcome, (), 0.5, "why", Resources(255, 1200))
    assert convert.measurement_from_wire(convert.measurement_to_wire(measurement)) == measurement


@pytest.mark.parametrize("run_s", [[], [math.nan], [-1.0], [0.0], [1e-3, math.inf]])
def test_an_ok_measurement_with_impossible_times_is_a_failure(run_s: list[float]) -> None:
    measurement = convert.measurement_from_wire(pb.Measurement(outcome="OUTCOME_OK", run_s=run_s))
    assert measurement.outcome is Outcome.UNKNOWN
    assert "is impossible" in measurement.error


def test_an_unknown_outcome_is_a_failure() -> None:
    message = pb.Measurement.FromString(bytes([0x08, 99]))
    assert message.outcome == 99
    assert convert.measurement_from_wire(message).outcome is Outcome.UNKNOWN


def test_times_of_a_failure_and_absurd_build_times_are_dropped() -> None:
    message = pb.Measurement(outcome="OUTCOME_RUN_ERROR", run_s=[1.0], build_s=math.nan, error="boom")
    assert convert.measurement_from_wire(message) == Measurement(Outcome.RUN_ERROR, (), 0.0, "boom")


def test_too_many_repeats_are_a_failure() -> None:
    message = pb.Measurement(outcome="OUTCOME_OK", run_s=[1.0] * (convert.MAX_REPEATS + 1))
    assert convert.measurement_from_wire(message).outcome is Outcome.UNKNOWN


def test_errors_keep_their_end_without_control_characters() -> None:
    error = "x" * 20000 + "\0\ud800 the end"
    sent = convert.measurement_to_wire(Measurement(Outcome.RUN_ERROR, error=error))
    received = convert.measurement_from_wire(sent).error
    assert received.endswith("the end")
    assert len(received) <= convert.MAX_ERROR_CHARS
    assert "\0" not in received


def test_a_device_survives() -> None:
    assert convert.device_from_wire(convert.device_to_wire(DEVICE)) == DEVICE


def test_a_gpu_survives() -> None:
    device = replace(DEVICE, gpu=Gpu(capability=90, timing=2))
    assert convert.device_from_wire(convert.device_to_wire(device)) == device


def test_a_gpu_without_a_way_of_timing_times_kernels_alone() -> None:
    message = convert.device_to_wire(replace(DEVICE, gpu=Gpu(timing=2)))
    message.gpu.timing = 0
    gpu = convert.device_from_wire(message).gpu
    assert gpu is not None
    assert gpu.timing == 1


@pytest.mark.parametrize("threads", [0, 1 << 30])
def test_an_impossible_gpu_is_refused(threads: int) -> None:
    message = convert.device_to_wire(replace(DEVICE, gpu=Gpu()))
    message.gpu.max_threads = threads
    with pytest.raises(WireError, match="the GPU's max_threads must be 1 to"):
        convert.device_from_wire(message)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cores", 0),
        ("cores", 100_000),
        ("vector_bytes", 0),
        ("l3_bytes", 1 << 60),
        ("name", "n" * 300),
        ("name", ""),
        ("triple", ""),
        ("target", "llvm -mcpu=native"),
        ("target", "[1]"),
        ("target", '{"kind":"llvm","cl-opt":["-load=/tmp/a.so"]}'),
        ("target", "[" * 60_000),
        ("target", ""),
    ],
)
def test_an_impossible_device_is_refused(field: str, value: object) -> None:
    message = convert.device_to_wire(DEVICE)
    setattr(message, field, value)
    with pytest.raises(WireError, match=field):
        convert.device_from_wire(message)


def test_a_profile_survives() -> None:
    device = replace(DEVICE, profile=replace(DEVICE.speeds, hertz=4.1e9, derived=("registers",)))
    received = convert.device_from_wire(convert.device_to_wire(device))
    assert received.profile == device.profile
    assert convert.device_from_wire(convert.device_to_wire(DEVICE)).profile is None


@pytest.mark.parametrize(
    "text",
    [
        "?",
        "null",
        "[]",
        "{}",
        "[" * 4000,
        " " * 4097,
        '"registers"',
        PROFILE | {"hertz": 0},
        PROFILE | {"hertz": math.nan},
        PROFILE | {"hertz": 10**400},
        PROFILE | {"hertz": "fast"},
        PROFILE | {"registers": 16.5},
        PROFILE | {"registers": True},
        PROFILE | {"multiply_adds": {}},
        PROFILE | {"multiply_adds": [1]},
        PROFILE | {"multiply_adds": {"float32": 2, "\ud800": 1}},
        PROFILE | {"multiply_adds": {"float32": -1}},
        PROFILE | {"derived": [{}]},
        PROFILE | {"derived": ["shape"]},
        PROFILE | {"shape": 1},
    ],
)
def test_an_implausible_profile_is_rejected(text: str | dict[str, object]) -> None:
    message = convert.device_to_wire(DEVICE)
    message.profile = text if isinstance(text, str) else json.dumps(text)
    with pytest.raises(WireError, match="the device's profile"):
        convert.device_from_wire(message)


def test_too_many_features_are_refused() -> None:
    with pytest.raises(WireError, match="features"):
        convert.device_from_wire(convert.device_to_wire(replace(DEVICE, features=("f",) * 5000)))


def test_a_report_survives() -> None:
    assert convert.report_from_wire(convert.report_to_wire(REPORT)) == REPORT


@pytest.mark.parametrize(
    "vitals",
    [
        Vitals(),
        Vitals("0.1.0", "0.27.0", 0.0, -4.5, 1 << 33, 16, 0),
        Vitals(load=1.5, sandbox_gaps="all"),
        Vitals(health_error="its check was ended by SIGILL"),
        Vitals(health_error="ü" * MAX_HEALTH_ERROR_CHARS),
    ],
)
def test_known_vitals_survive_conversion(vitals: Vitals) -> None:
    report = replace(REPORT, vitals=vitals)
    assert convert.report_from_wire(convert.report_to_wire(report)) == report


def test_impossible_gpu_resources_are_a_failure() -> None:
    message = convert.measurement_to_wire(OK)
    message.resources.registers = 1 << 30
    assert convert.measurement_from_wire(message).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize(
    "impossible",
    [
        {"load_s": 0.0},
        {"load_s": math.nan},
        {"memory_bytes": (1 << 64) - 1},
        {"energy_j": -1.0},
        {"energy_j": math.inf},
    ],
)
def test_an_impossible_footprint_is_a_failure(impossible: dict[str, float]) -> None:
    message = convert.measurement_to_wire(OK)
    for name, number in impossible.items():
        setattr(message.footprint, name, number)
    assert convert.measurement_from_wire(message).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("speed", [0.0, -1.0, 1.5, math.nan, math.inf, -math.inf])
def test_an_impossible_speed_is_a_failure(speed: float) -> None:
    message = convert.measurement_to_wire(OK)
    message.speed = speed
    assert convert.measurement_from_wire(message).outcome is Outcome.UNKNOWN


def test_an_older_workers_measurement_has_no_speed() -> None:
    message = convert.measurement_to_wire(OK)
    message.ClearField("speed")
    assert convert.measurement_from_wire(message) == replace(OK, speed=None)


def test_a_report_without_vitals_is_understood() -> None:
    message = convert.report_to_wire(REPORT)
    message.ClearField("vitals")
    assert convert.report_from_wire(message).vitals == Vitals()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tunefarm_version", "1.0\nroot:"),
        ("tvm_version", "9" * 65),
        ("driver", "580\n"),
        ("sandbox_gaps", "x" * 4000),
        ("health_error", "x" * (MAX_HEALTH_ERROR_CHARS + 1)),
        ("health_error", "its check\nfailed"),
        ("health_error", "its check \x1b[31mfailed"),
        ("load", math.nan),
        ("load", -1.0),
        ("temperature_c", math.inf),
        ("temperature_c", 5000.0),
        ("memory_free_bytes", 1 << 60),
        ("candidates", 1 << 30),
    ],
)
def test_implausible_vitals_are_dropped(field: str, value: object) -> None:
    message = wire_report()
    message.vitals.load = 0.5
    setattr(message.vitals, field, value)
    known = convert.report_from_wire(message).vitals
    assert known == (Vitals() if field == "load" else Vitals(load=0.5))


def test_a_module_runs_result_survives() -> None:
    report = replace(REPORT, results=(Result(1, HELD, OK, module_run_id=9),))
    assert convert.report_from_wire(convert.report_to_wire(report)) == report


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"worker_id": ""}, "worker id"),
        ({"worker_id": "a b"}, "worker id"),
        ({"worker_id": "w" * 200}, "worker id"),
        ({"session_id": "s\n"}, "session id"),
        ({"state": 0}, "not a state"),
        ({"state": 77}, "not a state"),
        ({"wait_s": -1.0}, "wait_s"),
        ({"wait_s": math.nan}, "wait_s"),
    ],
)
def test_an_invalid_report_is_rejected(changes: dict[str, object], why: str) -> None:
    with pytest.raises(WireError, match=why):
        convert.report_from_wire(wire_report(**changes))


def test_a_ready_worker_without_a_device_is_refused() -> None:
    message = wire_report()
    message.ClearField("device")
    with pytest.raises(WireError, match="fingerprint"):
        convert.report_from_wire(message)


def test_a_result_without_an_id_is_rejected() -> None:
    message = wire_report()
    message.results[0].ClearField("trial_id")
    with pytest.raises(WireError, match="a trial or a module run"):
        convert.report_from_wire(message)


def test_a_result_with_an_impossible_id_is_rejected() -> None:
    message = wire_report()
    message.results[0].trial_id = 2**64 - 1
    with pytest.raises(WireError, match="not an id"):
        convert.report_from_wire(message)


def test_a_result_without_a_lease_is_refused() -> None:
    message = wire_report()
    message.results[0].ClearField("lease")
    with pytest.raises(WireError, match="lease id"):
        convert.report_from_wire(message)


def test_too_many_results_are_refused() -> None:
    message = wire_report()
    message.results.extend([message.results[0]] * 1000)
    with pytest.raises(WireError, match="at most 1000"):
        convert.report_from_wire(message)


def test_the_calibration_flags_survive() -> None:
    report = replace(REPORT, calibrated=True)
    assert convert.report_from_wire(convert.report_to_wire(report)) == report
    response = SyncResponse(calibrate=True)
    assert convert.response_from_wire(convert.response_to_wire(response), None) == response


def test_an_unsupported_protocol_is_named() -> None:
    with pytest.raises(ProtocolMismatchError, match="protocol 3, the worker 2: install the same"):
        convert.report_from_wire(wire_report(protocol=2))


def test_the_wait_is_limited_to_the_maximum() -> None:
    assert convert.report_from_wire(wire_report(wait_s=1e9)).wait_s == 30.0


@pytest.mark.parametrize(
    "lease",
    [
        LEASE,
        replace(LEASE, candidates=(), module_runs=MODULE_RUNS),
        replace(LEASE, build=True),
    ],
)
def test_a_response_with_a_new_lease_survives_conversion(lease: Lease) -> None:
    response = SyncResponse(lease=lease, acknowledged=(1, 2), call_again_after_s=5.0)
    assert convert.response_from_wire(convert.response_to_wire(response), held=None) == response


@pytest.mark.parametrize("desired_state", list(DesiredState))
def test_every_desired_state_survives(desired_state: DesiredState) -> None:
    response = SyncResponse(
        fenced=desired_state is DesiredState.EVICTED, desired_state=desired_state, call_again_after_s=5.0
    )
    assert convert.response_from_wire(convert.response_to_wire(response), held=None) == response


def test_an_unknown_desired_state_means_work() -> None:
    message = pb.SynchronizeResponse.FromString(bytes([0x28, 99]))
    assert message.desired_state == 99
    assert convert.response_from_wire(message, held=None).desired_state is DesiredState.WORK


def test_a_held_lease_is_sent_as_an_id() -> None:
    response = SyncResponse(keeps=HELD, call_again_after_s=5.0)
    message = convert.response_to_wire(response)
    assert not message.lease.candidates
    assert convert.response_from_wire(message, held=HELD) == response


def test_a_kept_lease_that_is_not_held_is_refused() -> None:
    message = convert.response_to_wire(SyncResponse(keeps=HELD))
    with pytest.raises(WireError, match="lease makes no sense"):
        convert.response_from_wire(message, held=LeaseId("other", 1))


def test_a_fenced_response_survives_and_its_pause_is_limited() -> None:
    message = pb.SynchronizeResponse(fenced=True, call_again_after_s=math.nan)
    assert convert.response_from_wire(message, held=None) == SyncResponse(fenced=True)


@pytest.mark.parametrize("best_s", [0.0, -1.0, math.nan, math.inf])
def test_an_impossible_best_latency_is_rejected(best_s: float) -> None:
    message = convert.lease_to_wire(LEASE)
    message.candidates[0].best_s = best_s
    with pytest.raises(WireError, match="the best latency known must be positive"):
        convert.lease_from_wire(message)


def test_a_lease_of_an_unknown_kind_is_refused() -> None:
    message = convert.lease_to_wire(replace(LEASE, candidates=(), module_runs=MODULE_RUNS))
    message.module_runs[1].kind = "faster"
    with pytest.raises(WireError, match="one of the kinds untuned, tuned, published, onnxruntime"):
        convert.lease_from_wire(message)


def test_a_lease_of_too_many_module_runs_is_refused() -> None:
    message = convert.lease_to_wire(replace(LEASE, candidates=(), module_runs=MODULE_RUNS))
    message.module_runs.extend(message.module_runs[:1] * 16)
    with pytest.raises(WireError, match="at most 16 module runs"):
        convert.lease_from_wire(message)


def test_a_lease_of_protocol_1_is_ignored() -> None:
    """Its one module run was field 4, which is not read as anything else."""
    message = convert.lease_to_wire(replace(LEASE, candidates=(), module_runs=MODULE_RUNS))
    message.ClearField("module_runs")
    of_old = message.SerializeToString() + b"\x22\x0b\x08\x05\x12\x05tuned\x1a\x00"
    with pytest.raises(WireError, match="candidates or for module runs"):
        convert.lease_from_wire(pb.Lease.FromString(of_old))


def test_a_built_result_survives() -> None:
    report = replace(REPORT, results=(Result(1, HELD, Built(SHA, 0.25), trial_id=9),))
    assert convert.report_from_wire(convert.report_to_wire(report)) == report


@pytest.mark.parametrize(("sha", "build_s"), [("", 0.1), ("AB" * 32, 0.1), (SHA, -1.0), (SHA, math.nan)])
def test_an_invalid_built_result_is_a_failure(sha: str, build_s: float) -> None:
    message = wire_report()
    message.results[0].built.CopyFrom(pb.Built(sha256=sha, build_s=build_s))
    (result,) = convert.report_from_wire(message).results
    assert isinstance(result.measurement, Measurement)
    assert (result.trial_id, result.measurement.outcome) == (3, Outcome.UNKNOWN)
    assert "is impossible" in result.measurement.error


def test_roles_survive_and_old_workers_are_measuring_devices() -> None:
    builder = replace(REPORT, role=Role.BUILD, builds_for=("x86_64", "aarch64"))
    assert convert.report_from_wire(convert.report_to_wire(builder)) == builder
    assert convert.report_from_wire(convert.report_to_wire(REPORT)).role is Role.MEASURE


@pytest.mark.parametrize(
    ("platforms", "why"),
    [
        ([], "must name its platforms"),
        (["x86_64"] * 17, "at most 16"),
        (["x" * 33], "at most 16 names"),
        (["a b"], "names such as"),
        (["'; DROP"], "names such as"),
    ],
)
def test_a_builder_with_invalid_platforms_is_rejected(platforms: list[str], why: str) -> None:
    message = wire_report()
    message.role = pb.WORKER_ROLE_BUILD
    message.builds_for.extend(platforms)
    with pytest.raises(WireError, match=why):
        convert.report_from_wire(message)


def test_an_unknown_role_is_rejected() -> None:
    with pytest.raises(WireError, match="7 is not a role"):
        convert.report_from_wire(wire_report(role=7))


LIBRARY = LibraryUpload("session", HELD, 3, b"code")


def test_a_library_survives() -> None:
    assert library_from_wire(library_to_wire(LIBRARY)) == LIBRARY


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"data": b"other code"}, "arrived damaged"),
        ({"sha256": ""}, "arrived damaged"),
        ({"trial_id": 2**63}, "not an id"),
        ({"lease": pb.LeaseId(id="", attempt=1)}, "lease id"),
    ],
)
def test_a_damaged_library_or_one_without_a_trial_is_rejected(changes: dict[str, object], why: str) -> None:
    message = library_to_wire(LIBRARY)
    for field, value in changes.items():
        if isinstance(value, pb.LeaseId):
            message.lease.CopyFrom(value)
        else:
            setattr(message, field, value)
    with pytest.raises(WireError, match=why):
        library_from_wire(message)


def test_a_librarys_size_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proto.convert.MAX_LIBRARY_BYTES", 3)
    with pytest.raises(WireError, match="at most 3 bytes, not 4"):
        library_from_wire(library_to_wire(LIBRARY))
