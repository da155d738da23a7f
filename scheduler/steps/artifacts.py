"""Packs the compiled model as an artifact, and sorts out schedules that can't be compiled into it."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version

from compiler.importing.model import ExtractedTask
from compiler.lowering.trace import LoweringError, apply_trace
from compiler.packaging.artifact import Manifest, TaskEntry, pack, unpack
from compiler.sandbox.models import ImportedModel
from compiler.sandbox.traces import check_traces
from compiler.workload import from_json
from core.device import Device
from core.lease import ModuleKind
from records.jobs.jobs import Job
from records.schedules.schedules import Record
from scheduler.steps.selection import AssemblyHistory, ScheduleId, Selection, next_selection, schedule_id

PACKAGES = ("apache-tvm", "apache-tvm-ffi")
# The fastest imported schedules of a task that are tried; each may cost a process.
MAX_IMPORTED = 4
# The subgraphs without their best schedule that a message names.
MAX_NAMED = 3

log = logging.getLogger(__name__)


def untuned_artifact(job: Job, device: Device, imported: ImportedModel, library: bytes, now: float) -> bytes:
    """Pack the library that TVM makes of the model by default."""
    return pack(library, _manifest(job, device, imported, (), now))


def tuned_artifact(
    job: Job,
    device: Device,
    imported: ImportedModel,
    selection: Selection,
    library: bytes,
    reference: bytes | None,
    now: float,
) -> bytes:
    """Pack the library that was assembled with the selection; other workloads have their fallback schedule.

    Its outputs will be compared with those of the library `reference`, if there is one.
    """
    tasks = {task.workload_hash: task for task in imported.tasks}
    entries = []
    for own in imported.tasks:
        if own.variant:
            continue
        record = selection.chosen.get(own.workload_hash)
        task = own if record is None else tasks[record.workload_hash]
        reason = selection.reasons.get(own.workload_hash, "")
        entry = TaskEntry(task.workload_hash, task.name, own.weight, reason=reason, variant=task.variant)
        if record is not None:
            entry = replace(entry, trace=record.trace, latency_s=record.latency_s, source=record.source)
        entries.append(entry)
    return pack(library, _manifest(job, device, imported, tuple(entries), now), reference)


def select_applicable(
    tasks: Sequence[ExtractedTask], records: Sequence[Record], target: str, history: AssemblyHistory
) -> Selection | None:
    """Return the next selection whose traces all apply to their workloads; None when there is none.

    `records` of a workload come fastest first.
    """
    modules = {task.workload_hash: task.module_json for task in tasks}
    places = {task.workload_hash: task.place for task in tasks}
    num_imported: Counter[str] = Counter()
    usable: list[Record] = []
    for record in records:
        num_imported[record.workload_hash] += record.source == "import"
        is_surplus = record.source == "import" and num_imported[record.workload_hash] > MAX_IMPORTED
        if record.workload_hash in modules and not is_surplus:
            usable.append(record)
    # Where one schedule turned out not to compile, the next may not either.
    suspicious = {workload for workload, _ in history.refused}
    while (selection := next_selection(usable, history, places)) is not None:
        refused = _refused(modules, selection.chosen, target, suspicious)
        if not refused:
            return selection
        history = replace(history, refused={**history.refused, **refused})
    return None


def find_uncompilable(
    tasks: Sequence[ExtractedTask], selection: Selection, target: str
) -> dict[ScheduleId, str]:
    """Compile each schedule of a selection alone, in a child process; return those that fail, and why."""
    modules = {task.workload_hash: task.module_json for task in tasks}
    return _refused(modules, selection.chosen, target, suspicious=selection.traces.keys())


def describe_replaced(manifest: Manifest) -> str:
    """Return which subgraphs run something else than their best schedule, and why; empty when none does."""
    listed = [entry for entry in manifest.tasks if entry.reason]
    if not listed:
        return ""
    run = "runs" if len(listed) == 1 else "run"
    kinds = {"the fallback schedule" if entry.trace is None else "a slower schedule" for entry in listed}
    named = "; ".join(f"{entry.name}: {entry.reason}" for entry in listed[:MAX_NAMED])
    more = f"; and {len(listed) - MAX_NAMED} more, see the manifest" if len(listed) > MAX_NAMED else ""
    count = f"{len(listed)} of {len(manifest.tasks)} subgraphs"
    return f"{count} {run} {' or '.join(sorted(kinds, reverse=True))}: {named}{more}"


def with_timings(artifact: bytes, secs: Mapping[ModuleKind, tuple[float, ...]]) -> bytes:
    """Return the artifact with the end-to-end seconds in its manifest, and without its reference library.

    Raises ArtifactError.
    """
    library, manifest = unpack(artifact)
    timed = replace(
        manifest,
        untuned_secs=secs.get("untuned", ()),
        tuned_secs=secs.get("tuned", ()),
        published_secs=secs.get("published", ()),
    )
    return pack(library, timed)


def _refused(
    modules: Mapping[str, str], chosen: Mapping[str, Record], target: str, suspicious: Collection[str]
) -> dict[ScheduleId, str]:
    """Return the schedules whose traces don't apply, and why.

    Imported ones, and those of `suspicious` workloads, may crash the compiler: they are first applied and
    compiled in a child process.
    """
    records = {record.workload_hash: record for record in chosen.values()}
    risky = [name for name, record in records.items() if record.source == "import" or name in suspicious]
    checked = check_traces([(modules[name], records[name].trace) for name in risky], target)
    problems = dict(zip(risky, checked, strict=True))
    refused: dict[ScheduleId, str] = {}
    for name, record in records.items():
        problem = problems.get(name)
        if not problem:
            try:
                apply_trace(from_json(modules[name]), record.trace)
            except LoweringError as error:
                problem = str(error)
        if problem:
            log.warning("a schedule of %s (%s) is left out: %s", name, record.source, problem)
            refused[schedule_id(record)] = problem
    return refused


def _manifest(
    job: Job, device: Device, imported: ImportedModel, entries: tuple[TaskEntry, ...], now: float
) -> Manifest:
    return Manifest(
        model_name=job.request.model_name,
        model_sha=job.request.model_sha,
        target=device.target,
        device_class=device.key,
        inputs=imported.inputs,
        outputs=imported.outputs,
        threads=device.cores,
        versions={name: version(name) for name in PACKAGES} | {"device toolchain": device.toolchain},
        created_at=now,
        tasks=entries,
    )
