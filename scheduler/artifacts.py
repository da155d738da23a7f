"""Choosing the schedules of a model, and packing it with a manifest that says what is in it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version

from compiler.contained.models import Imported
from compiler.contained.traces import try_traces
from compiler.importing.model import ExtractedTask
from compiler.lowering.trace import LoweringError, apply_trace
from compiler.packaging.artifact import Manifest, TaskEntry, pack, unpack
from compiler.workload import from_json
from records.jobs import Job
from records.schedules import Record
from search.device import Device

PACKAGES = ("apache-tvm", "apache-tvm-ffi")
# Of each task so many imported schedules are tried, fastest first.
MAX_IMPORTED = 4

log = logging.getLogger(__name__)


def untuned_artifact(job: Job, device: Device, imported: Imported, library: bytes, now: float) -> bytes:
    """The library that TVM made of the model by default, packed."""
    return pack(library, _manifest(job, device, imported, (), now))


def tuned_artifact(
    job: Job,
    device: Device,
    imported: Imported,
    chosen: Mapping[str, Record],
    library: bytes,
    reference: bytes | None,
    now: float,
) -> bytes:
    """The library made with the `chosen` records (the rest has fallback schedules), packed.

    Its outputs must be those of the library `reference`, if there is one.
    """
    entries = tuple(_entry(task, chosen.get(task.workload_hash)) for task in imported.tasks)
    return pack(library, _manifest(job, device, imported, entries, now), reference)


def choose(tasks: Sequence[ExtractedTask], records: Iterable[Record], target: str) -> dict[str, Record]:
    """The first record of each task whose trace applies: one that was imported may not."""
    modules = {task.workload_hash: task.module_json for task in tasks}
    left = _by_workload(record for record in records if record.workload_hash in modules)
    chosen: dict[str, Record] = {}
    while left:
        firsts = {name: found.pop(0) for name, found in left.items()}
        refused = _refused(modules, firsts, target)
        chosen |= {name: record for name, record in firsts.items() if name not in refused}
        left = {name: left[name] for name in refused if left[name]}
    return chosen


def with_timings(
    artifact: bytes, untuned_secs: tuple[float, ...] | None, tuned_secs: tuple[float, ...] | None
) -> bytes:
    """The artifact with the end-to-end seconds in its manifest, and without what it was compared with.

    Raises ArtifactError.
    """
    library, manifest = unpack(artifact)
    timed = replace(manifest, untuned_secs=untuned_secs or (), tuned_secs=tuned_secs or ())
    return pack(library, timed)


def _by_workload(records: Iterable[Record]) -> dict[str, list[Record]]:
    """In their order; of what was imported only the first few, because each may cost a process."""
    found: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        same = found[record.workload_hash]
        if record.source != "import" or sum(one.source == "import" for one in same) < MAX_IMPORTED:
            same.append(record)
    return dict(found)


def _refused(modules: Mapping[str, str], firsts: Mapping[str, Record], target: str) -> list[str]:
    """The workloads whose records don't apply. What strangers sent is tried in another process first."""
    strange = [name for name, record in firsts.items() if record.source == "import"]
    tried = try_traces([(modules[name], firsts[name].trace) for name in strange], target)
    problems = dict(zip(strange, tried, strict=True))
    for name, record in firsts.items():
        problems[name] = problems.get(name) or _problem(modules[name], record.trace)
        if problems[name]:
            log.warning("a schedule of %s (%s) is left out: %s", name, record.source, problems[name])
    return [name for name, problem in problems.items() if problem]


def _problem(module_json: str, trace: str) -> str:
    """Why a trace doesn't apply; empty when it does."""
    try:
        apply_trace(from_json(module_json), trace)
    except LoweringError as error:
        return str(error)
    return ""


def _entry(task: ExtractedTask, record: Record | None) -> TaskEntry:
    if record is None:
        return TaskEntry(task.workload_hash, task.name, task.weight)
    return TaskEntry(
        task.workload_hash, task.name, task.weight, record.trace, record.latency_s, record.source
    )


def _manifest(
    job: Job, device: Device, imported: Imported, entries: tuple[TaskEntry, ...], now: float
) -> Manifest:
    return Manifest(
        model_name=job.request.model_name,
        model_sha=job.request.model_sha,
        target=device.target,
        device_class=device.key,
        inputs=imported.inputs,
        outputs=imported.outputs,
        threads=device.cores,
        versions=_versions(device),
        created_at=now,
        tasks=entries,
    )


def _versions(device: Device) -> Mapping[str, str]:
    return {name: version(name) for name in PACKAGES} | {"device toolchain": device.toolchain}
