"""Compiling a model and packing it with a manifest that says what is in it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version

from compiler.artifact import Manifest, TaskEntry, build_library, build_module, pack, unpack
from compiler.lower import LoweringError, apply_trace
from compiler.model import ExtractedTask, untuned
from compiler.workload import from_json
from records.jobs import Job
from records.schedules import Record
from scheduler.models import Prepared
from search.device import Device

PACKAGES = ("apache-tvm", "apache-tvm-ffi")

log = logging.getLogger(__name__)


def untuned_artifact(job: Job, device: Device, prepared: Prepared, now: float) -> bytes:
    """The model as TVM compiles it by default. Raises ArtifactError, ModelError."""
    library = build_library(untuned(prepared.model, device.target), device.target)
    return pack(library, _manifest(job, device, prepared, (), now))


def tuned_artifact(
    job: Job, device: Device, prepared: Prepared, records: Iterable[Record], now: float
) -> bytes:
    """The model under the best of the `records` (fastest first by workload); the rest has fallback schedules.

    Raises ArtifactError.
    """
    chosen = choose(prepared.tasks, records)
    library = build_module(prepared.fused, {name: r.trace for name, r in chosen.items()}, device.target)
    entries = tuple(_entry(task, chosen.get(task.workload_hash)) for task in prepared.tasks)
    return pack(library, _manifest(job, device, prepared, entries, now))


def choose(tasks: Sequence[ExtractedTask], records: Iterable[Record]) -> dict[str, Record]:
    """The first record of each task whose trace applies: one that was imported may not."""
    modules = {task.workload_hash: task.module_json for task in tasks}
    chosen: dict[str, Record] = {}
    for record in records:
        name = record.workload_hash
        if name in modules and name not in chosen and _applies(modules[name], record):
            chosen[name] = record
    return chosen


def with_timings(
    artifact: bytes, untuned_secs: tuple[float, ...] | None, tuned_secs: tuple[float, ...] | None
) -> bytes:
    """The artifact with the end-to-end seconds in its manifest. Raises ArtifactError."""
    library, manifest = unpack(artifact)
    timed = replace(manifest, untuned_secs=untuned_secs or (), tuned_secs=tuned_secs or ())
    return pack(library, timed)


def _applies(module_json: str, record: Record) -> bool:
    try:
        apply_trace(from_json(module_json), record.trace)
    except LoweringError as error:
        log.warning("a schedule of %s (%s) is left out: %s", record.workload_hash, record.source, error)
        return False
    return True


def _entry(task: ExtractedTask, record: Record | None) -> TaskEntry:
    if record is None:
        return TaskEntry(task.workload_hash, task.name, task.weight)
    return TaskEntry(
        task.workload_hash, task.name, task.weight, record.trace, record.latency_s, record.source
    )


def _manifest(
    job: Job, device: Device, prepared: Prepared, entries: tuple[TaskEntry, ...], now: float
) -> Manifest:
    return Manifest(
        model_name=job.request.model_name,
        model_sha=job.request.model_sha,
        target=device.target,
        device_class=device.key,
        inputs=prepared.model.inputs,
        outputs=prepared.model.outputs,
        threads=device.cores,
        versions=_versions(device),
        created_at=now,
        tasks=entries,
    )


def _versions(device: Device) -> Mapping[str, str]:
    return {name: version(name) for name in PACKAGES} | {"device toolchain": device.toolchain}
