"""Conversion between protobuf messages and the values of core/ and `proto.messages`.

A `..._to_wire` function never fails on a valid value. A `..._from_wire` function validates every field, and
raises WireError with a sentence for the sender when a message makes no sense. Only `measurement_from_wire`
returns a failed measurement instead, because one odd result must not cost the others of its report.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict, fields
from typing import Any, get_args

from core.device import Device, Gpu
from core.lease import Candidate, Lease, LeaseId, Limits, ModuleKind, ModuleRun
from core.measurement import Built, Footprint, Measurement, Outcome, Resources
from core.profile import Profile
from core.target import MAX_TARGET_CHARS, TargetRefused, rewrite_target
from core.worker import MAX_HEALTH_ERROR_CHARS, DesiredState, Role, Vitals, WorkerState
from proto import fleet_pb2 as pb
from proto.messages import (
    MAX_LIBRARY_BYTES,
    MAX_OUTPUTS_BYTES,
    MAX_PROFILE_CHARS,
    MAX_RESULTS,
    MAX_WAIT_S,
    PROTOCOL,
    LibraryUpload,
    OutputsUpload,
    Result,
    SyncResponse,
    WorkerReport,
)

MAX_ERROR_CHARS = 8192
MAX_REPEATS = 10_000
MAX_ID = 2**63 - 1

_OUTCOMES = {int(pb.Outcome.Value(f"OUTCOME_{outcome.name}")): outcome for outcome in Outcome}
_STATES = {int(pb.WorkerState.Value(f"WORKER_STATE_{state.name}")): state for state in WorkerState}
_ROLES = {int(pb.WorkerRole.Value(f"WORKER_ROLE_{role.name}")): role for role in Role}
_DESIRED_STATES = {int(pb.DesiredState.Value(f"DESIRED_STATE_{state.name}")): state for state in DesiredState}

_DEVICE_CHARS = {"name": 256, "triple": 128, "mcpu": 128, "toolchain": 1024, "target": MAX_TARGET_CHARS}
_DEVICE_SIZES = {
    "cores": 4096,
    "vector_bytes": 65536,
    "l1_bytes": 1 << 32,
    "l2_bytes": 1 << 36,
    "l3_bytes": 1 << 40,
}
_MAX_FEATURES = 1024
_VITAL_CHARS = {
    "tunefarm_version": 64,
    "tvm_version": 64,
    "driver": 64,
    "onnxruntime_version": 64,
    "sandbox_gaps": 2048,
    "health_error": MAX_HEALTH_ERROR_CHARS,
}
_VITAL_RANGES: dict[str, tuple[float, float]] = {
    "load": (0.0, 1e6),
    "temperature_c": (-100.0, 300.0),
    "memory_free_bytes": (0, 1 << 50),
    "power_w": (0.0, 1e5),
    "candidates": (0, 1 << 20),
    "candidates_done": (0, 1 << 20),
}
_MAX_GPU_SIZE = 1 << 24
_MAX_GPU_CHARS = 128


class WireError(ValueError):
    """A message makes no sense; the text is a sentence for its sender."""


class ProtocolMismatchError(WireError):
    """The other side speaks another version of the protocol."""


def measurement_to_wire(measurement: Measurement) -> pb.Measurement:
    return pb.Measurement(
        outcome=f"OUTCOME_{measurement.outcome.name}",
        run_s=measurement.run_s,
        build_s=measurement.build_s,
        error=clean_text(measurement.error),
        resources=None if measurement.resources is None else pb.Resources(**asdict(measurement.resources)),
        footprint=None if measurement.footprint is None else pb.Footprint(**asdict(measurement.footprint)),
        speed=measurement.speed,
    )


def measurement_from_wire(message: pb.Measurement) -> Measurement:
    """Never raises: an outcome or times that make no sense become an UNKNOWN failure."""
    outcome = _OUTCOMES.get(message.outcome, Outcome.UNKNOWN)
    build_s = message.build_s if 0.0 <= message.build_s < math.inf else 0.0
    error = clean_text(message.error)
    if len(message.run_s) > MAX_REPEATS:
        return Measurement(Outcome.UNKNOWN, (), build_s, f"the worker reported {len(message.run_s)} repeats")
    run_s = tuple(message.run_s) if outcome is Outcome.OK else ()
    try:
        found = message.resources if message.HasField("resources") else None
        resources = None if found is None else Resources(found.registers, found.spilled_bytes)
        footprint = _footprint_from_wire(message.footprint) if message.HasField("footprint") else None
        speed = message.speed if message.HasField("speed") else None
        return Measurement(outcome, run_s, build_s, error, resources, footprint, speed)
    except ValueError as problem:
        return Measurement(Outcome.UNKNOWN, (), build_s, f"the worker's measurement is impossible: {problem}")


def _footprint_from_wire(message: pb.Footprint) -> Footprint:
    """Raises ValueError for numbers that make no sense."""
    energy_j = message.energy_j if message.HasField("energy_j") else None
    return Footprint(message.load_s, message.memory_bytes, energy_j)


def strict_measurement_from_wire(message: pb.Measurement, max_repeats: int) -> Measurement:
    """Raises WireError if anything in the message makes no sense."""
    if message.outcome not in _OUTCOMES:
        raise WireError(f"{message.outcome} is not an outcome")
    if not 0.0 <= message.build_s < math.inf:
        raise WireError(f"a build can't take {message.build_s} s")
    if len(message.run_s) > max_repeats:
        raise WireError(f"{len(message.run_s)} repeats are more than {max_repeats}")
    measurement = measurement_from_wire(message)
    if measurement.outcome is not _OUTCOMES[message.outcome]:
        raise WireError(measurement.error)
    return measurement


def device_to_wire(device: Device) -> pb.Device:
    return pb.Device(
        name=device.name,
        triple=device.triple,
        mcpu=device.mcpu,
        features=device.features,
        cores=device.cores,
        vector_bytes=device.vector_bytes,
        l1_bytes=device.l1_bytes,
        l2_bytes=device.l2_bytes,
        l3_bytes=device.l3_bytes,
        toolchain=device.toolchain,
        target=device.target,
        gpu=pb.Gpu(**asdict(device.gpu)) if device.gpu else None,
        profile=device.profile.to_json() if device.profile else "",
    )


def device_from_wire(message: pb.Device) -> Device:
    """Raises WireError."""
    for field, chars in _DEVICE_CHARS.items():
        if len(getattr(message, field)) > chars:
            raise WireError(f"the device's {field} is longer than {chars} characters")
    for field, most in _DEVICE_SIZES.items():
        if not 0 < getattr(message, field) <= most:
            raise WireError(f"the device's {field} must be 1 to {most}, not {getattr(message, field)}")
    if len(message.features) > _MAX_FEATURES or any(len(feature) > 128 for feature in message.features):
        raise WireError(f"a device has at most {_MAX_FEATURES} features of at most 128 characters")
    if not message.triple or not message.name:
        raise WireError("a device needs a name and a triple")
    try:
        target = rewrite_target(message.target)
    except TargetRefused as problem:
        raise WireError(f"the device's target can't be used: {problem}") from problem
    return Device(
        name=message.name,
        triple=message.triple,
        mcpu=message.mcpu,
        features=tuple(message.features),
        cores=message.cores,
        vector_bytes=message.vector_bytes,
        l1_bytes=message.l1_bytes,
        l2_bytes=message.l2_bytes,
        l3_bytes=message.l3_bytes,
        toolchain=message.toolchain,
        target=target,
        gpu=_gpu_from_wire(message.gpu) if message.HasField("gpu") else None,
        profile=profile_from_wire(message.profile) if message.profile else None,
    )


def profile_from_wire(text: str) -> Profile:
    """Raises WireError."""
    if len(text) > MAX_PROFILE_CHARS:
        raise WireError(f"the device's profile is longer than {MAX_PROFILE_CHARS} characters")
    try:
        return Profile.from_json(text)
    except ValueError as problem:
        raise WireError(f"the device's profile makes no sense: {problem}") from problem


def _gpu_from_wire(message: pb.Gpu) -> Gpu:
    facts = {field.name: getattr(message, field.name) for field in fields(Gpu)}
    texts = {name: facts.pop(name) for name in ("model", "cuda")}
    facts["timing"] = facts["timing"] or 1  # workers that time kernels alone leave it out
    for name, value in facts.items():
        if not 0 < value <= _MAX_GPU_SIZE:
            raise WireError(f"the GPU's {name} must be 1 to {_MAX_GPU_SIZE}, not {value}")
    for name, text in texts.items():
        if not 0 < len(text) <= _MAX_GPU_CHARS or not text.isprintable():
            raise WireError(f"the GPU's {name} must be a text of at most {_MAX_GPU_CHARS} characters")
    return Gpu(**facts, **texts)


def lease_to_wire(lease: Lease) -> pb.Lease:
    return pb.Lease(
        id=lease_id_to_wire(lease.id),
        target=lease.target,
        limits=pb.Limits(
            build_timeout_s=lease.limits.build_timeout_s,
            run_timeout_s=lease.limits.run_timeout_s,
            module_timeout_s=lease.limits.module_timeout_s,
            memory_bytes=lease.limits.memory_bytes,
        ),
        expires_after_s=lease.expires_after_s,
        candidates=[
            pb.Candidate(
                trial_id=candidate.trial_id,
                workload_hash=candidate.workload_hash,
                trace=candidate.trace,
                constants=candidate.constants,
                best_s=candidate.best_s,
                library_sha=candidate.library_sha or "",
            )
            for candidate in lease.candidates
        ],
        build=lease.build,
        module_runs=[pb.ModuleRun(**asdict(run)) for run in lease.module_runs],
        trace_parent=lease.trace_parent,
        model_bytes=lease.model_bytes,
    )


def lease_from_wire(message: pb.Lease) -> Lease:
    """Raises WireError."""
    limits = message.limits
    try:
        return Lease(
            id=lease_id_from_wire(message.id),
            target=message.target,
            limits=Limits(
                limits.build_timeout_s, limits.run_timeout_s, limits.module_timeout_s, limits.memory_bytes
            ),
            expires_after_s=message.expires_after_s,
            candidates=tuple(_candidate_from_wire(candidate) for candidate in message.candidates),
            module_runs=tuple(_module_run_from_wire(run) for run in message.module_runs),
            build=message.build,
            trace_parent=message.trace_parent,
            model_bytes=message.model_bytes,
        )
    except ValueError as problem:
        raise WireError(f"the lease makes no sense: {problem}") from problem


def result_to_wire(result: Result) -> pb.Result:
    message = pb.Result(
        number=result.number,
        lease=lease_id_to_wire(result.lease),
        trial_id=result.trial_id,
        module_run_id=result.module_run_id,
    )
    if isinstance(result.measurement, Built):
        built = result.measurement
        message.built.CopyFrom(pb.Built(sha256=built.sha, build_s=built.build_s))
    else:
        message.measurement.CopyFrom(measurement_to_wire(result.measurement))
    return message


def result_from_wire(message: pb.Result) -> Result:
    """Raises WireError if the trial, the module run or the lease is missing."""
    which = message.WhichOneof("of")
    if which is None:
        raise WireError("a result must name a trial or a module run")
    measurement: Measurement | Built
    try:
        if message.HasField("built"):
            measurement = Built(message.built.sha256, message.built.build_s)
        else:
            measurement = measurement_from_wire(message.measurement)
    except ValueError as problem:
        measurement = Measurement(Outcome.UNKNOWN, error=f"the worker's result is impossible: {problem}")
    return Result(
        number=message.number,
        lease=lease_id_from_wire(message.lease),
        measurement=measurement,
        trial_id=_id(message.trial_id) if which == "trial_id" else None,
        module_run_id=_id(message.module_run_id) if which == "module_run_id" else None,
    )


def report_to_wire(report: WorkerReport) -> pb.SynchronizeRequest:
    return pb.SynchronizeRequest(
        protocol=PROTOCOL,
        worker_id=report.worker_id,
        session_id=report.session_id,
        starting=report.starting,
        state=f"WORKER_STATE_{report.state.name}",
        device=None if report.device is None else device_to_wire(report.device),
        held=None if report.held is None else lease_id_to_wire(report.held),
        results=[result_to_wire(result) for result in report.results],
        slots=report.slots,
        wait_s=report.wait_s,
        vitals=pb.Vitals(**asdict(report.vitals)),
        role=f"WORKER_ROLE_{report.role.name}",
        builds_for=report.builds_for,
        calibrated=report.calibrated,
        boot_id=report.boot_id,
        hardware=report.hardware,
    )


def report_from_wire(message: pb.SynchronizeRequest) -> WorkerReport:
    """Cap `wait_s` at what the protocol allows. Raises ProtocolMismatchError or WireError."""
    if message.protocol != PROTOCOL:
        raise ProtocolMismatchError(
            f"this service speaks protocol {PROTOCOL}, the worker {message.protocol}: "
            "install the same tunefarm version on both sides"
        )
    if len(message.results) > MAX_RESULTS:
        raise WireError(f"at most {MAX_RESULTS} results fit in one call, not {len(message.results)}")
    if message.state not in _STATES:
        raise WireError(f"{message.state} is not a state of a worker")
    if message.role not in _ROLES:
        raise WireError(f"{message.role} is not a role of a worker")
    try:
        return WorkerReport(
            worker_id=message.worker_id,
            session_id=message.session_id,
            starting=message.starting,
            state=_STATES[message.state],
            device=device_from_wire(message.device) if message.HasField("device") else None,
            held=lease_id_from_wire(message.held) if message.HasField("held") else None,
            results=tuple(result_from_wire(result) for result in message.results),
            slots=message.slots,
            wait_s=min(message.wait_s, MAX_WAIT_S),
            vitals=_vitals_from_wire(message.vitals),
            role=_ROLES[message.role],
            builds_for=tuple(message.builds_for),
            calibrated=message.calibrated,
            boot_id=message.boot_id,
            hardware=tuple(message.hardware),
        )
    except ValueError as problem:
        raise WireError(str(problem)) from problem


def response_to_wire(response: SyncResponse) -> pb.SynchronizeResponse:
    message = pb.SynchronizeResponse(
        fenced=response.fenced,
        acknowledged=response.acknowledged,
        call_again_after_s=response.call_again_after_s,
        desired_state=f"DESIRED_STATE_{response.desired_state.name}",
        calibrate=response.calibrate,
        service_version=response.service_version,
    )
    if response.lease is not None:
        message.lease.CopyFrom(lease_to_wire(response.lease))
    elif response.keeps is not None:
        message.lease.id.CopyFrom(lease_id_to_wire(response.keeps))
    return message


def response_from_wire(message: pb.SynchronizeResponse, held: LeaseId | None) -> SyncResponse:
    """Convert the response to a request that named the lease `held`. Raises WireError."""
    named = lease_id_from_wire(message.lease.id) if message.HasField("lease") else None
    keeps = named if named is not None and named == held else None
    again_s = message.call_again_after_s
    return SyncResponse(
        fenced=message.fenced,
        keeps=keeps,
        lease=lease_from_wire(message.lease) if named is not None and keeps is None else None,
        acknowledged=tuple(message.acknowledged),
        call_again_after_s=min(again_s, 60.0) if 0.0 <= again_s < math.inf else 1.0,
        desired_state=_DESIRED_STATES.get(message.desired_state, DesiredState.WORK),
        calibrate=message.calibrate,
        service_version=_text(message.service_version, _VITAL_CHARS["tunefarm_version"]),
    )


def _vitals_from_wire(message: pb.Vitals) -> Vitals:
    """Leave out invalid values: no work depends on vitals."""
    valid: dict[str, Any] = {}
    for name, chars in _VITAL_CHARS.items():
        valid[name] = _text(getattr(message, name), chars)
    for name, (least, most) in _VITAL_RANGES.items():
        if message.HasField(name) and least <= (number := getattr(message, name)) <= most:
            valid[name] = number
    return Vitals(**valid, infers=message.infers)


def library_to_wire(library: LibraryUpload) -> pb.Library:
    return pb.Library(trial_id=library.trial_id, **_upload_fields(library))


def library_from_wire(message: pb.Library) -> LibraryUpload:
    """Raises WireError, also if the data doesn't have the message's digest."""
    _check_upload(
        message, MAX_LIBRARY_BYTES, "a library has", "the library arrived damaged: its SHA-256 differs"
    )
    lease = lease_id_from_wire(message.lease)
    return LibraryUpload(message.session_id, lease, _id(message.trial_id), message.data)


def outputs_to_wire(outputs: OutputsUpload) -> pb.Outputs:
    return pb.Outputs(module_run_id=outputs.module_run_id, **_upload_fields(outputs))


def outputs_from_wire(message: pb.Outputs) -> OutputsUpload:
    """Raises WireError, also if the data doesn't have the message's digest."""
    _check_upload(
        message, MAX_OUTPUTS_BYTES, "outputs have", "the outputs arrived damaged: their SHA-256 differs"
    )
    lease = lease_id_from_wire(message.lease)
    return OutputsUpload(message.session_id, lease, _id(message.module_run_id), message.data)


def _upload_fields(upload: LibraryUpload | OutputsUpload) -> dict[str, Any]:
    """Return the fields that the messages of all uploads have."""
    lease = lease_id_to_wire(upload.lease)
    return {"session_id": upload.session_id, "lease": lease, "sha256": upload.sha, "data": upload.data}


def _check_upload(message: pb.Library | pb.Outputs, max_bytes: int, subject: str, damaged: str) -> None:
    """Raise WireError if the data is too large, or doesn't have the message's digest."""
    if len(message.data) > max_bytes:
        raise WireError(f"{subject} at most {max_bytes} bytes, not {len(message.data)}")
    if hashlib.sha256(message.data).hexdigest() != message.sha256:
        raise WireError(damaged)


def lease_id_to_wire(lease: LeaseId) -> pb.LeaseId:
    return pb.LeaseId(id=lease.id, attempt=lease.attempt)


def lease_id_from_wire(message: pb.LeaseId) -> LeaseId:
    try:
        return LeaseId(message.id, message.attempt)
    except ValueError as problem:
        raise WireError(str(problem)) from problem


def _candidate_from_wire(message: pb.Candidate) -> Candidate:
    if not message.workload_hash:
        raise WireError(f"trial {message.trial_id} names no workload")
    return Candidate(
        trial_id=_id(message.trial_id),
        workload_hash=message.workload_hash,
        trace=message.trace,
        constants=tuple(message.constants),
        best_s=message.best_s if message.HasField("best_s") else None,
        library_sha=message.library_sha or None,
    )


def _module_run_from_wire(message: pb.ModuleRun) -> ModuleRun:
    kinds: dict[str, ModuleKind] = {kind: kind for kind in get_args(ModuleKind)}
    if message.kind not in kinds or not message.artifact_sha:
        raise WireError(f"a module run needs an artifact, and one of the kinds {', '.join(kinds)}")
    kind = kinds[message.kind]
    return ModuleRun(_id(message.id), kind, message.artifact_sha, message.compare, message.shapes)


def _id(number: int) -> int:
    if number > MAX_ID:
        raise WireError(f"{number} is not an id")
    return number


def clean_text(text: str) -> str:
    """Return the last MAX_ERROR_CHARS characters, where compilers name the cause.

    Characters that databases and protobuf refuse are replaced.
    """
    text = text[-MAX_ERROR_CHARS:].replace("\0", "")
    return text.encode("utf-8", "replace").decode("utf-8")


def _text(text: str, chars: int) -> str:
    """Return a text that is meant for people, "" if it makes no sense."""
    return text if len(text) <= chars and text.isprintable() else ""
