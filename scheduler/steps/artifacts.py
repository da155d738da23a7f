"""Choosing the schedules of a model, and packing it with a manifest that says what is in it."""

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
from scheduler.steps.fallbacks import History, Plan, Schedule, next_plan, schedule_of

PACKAGES = ("apache-tvm", "apache-tvm-ffi")
# Of each task so many imported schedules are tried, fastest first.
MAX_IMPORTED = 4
# Of subgraphs that don't run their best schedules so many are named to the user.
MAX_NAMED = 3

log = logging.getLogger(__name__)


def untuned_artifact(job: Job, device: Device, imported: ImportedModel, library: bytes, now: float) -> bytes:
    """The library that TVM made of the model by default, packed."""
    return pack(library, _manifest(job, device, imported, (), now))


def tuned_artifact(
    job: Job,
    device: Device,
    imported: ImportedModel,
    plan: Plan,
    library: bytes,
    reference: bytes | None,
    now: float,
) -> bytes:
    """The library made as planned (what has no record there has the fallback schedule), packed.

    Its outputs must be those of the library `reference`, if there is one.
    """
    entries = tuple(_entry(task, plan) for task in imported.tasks)
    return pack(library, _manifest(job, device, imported, entries, now), reference)


def choose(
    tasks: Sequence[ExtractedTask], records: Sequence[Record], target: str, history: History
) -> Plan | None:
    """The next plan whose traces all apply: one that was imported may not. None when there is none.

    `records` are of each workload fastest first.
    """
    modules = {task.workload_hash: task.module_json for task in tasks}
    usable = _usable(records, modules)
    # Where one turned out not to compile, the next may not either.
    apart = {workload for workload, _ in history.refused}
    while (plan := next_plan(usable, history)) is not None:
        refused = _refused(modules, plan.chosen, target, apart)
        if not refused:
            return plan
        history = replace(history, refused={**history.refused, **refused})
    return None


def culprits(tasks: Sequence[ExtractedTask], plan: Plan, target: str) -> dict[Schedule, str]:
    """What is wrong with those schedules of a plan that can't be compiled: each alone, in another process."""
    modules = {task.workload_hash: task.module_json for task in tasks}
    return _refused(modules, plan.chosen, target, apart=plan.chosen.keys())


def replaced(manifest: Manifest) -> str:
    """Which subgraphs run something else than their best schedule, and why; empty when none does."""
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
    """The artifact with the end-to-end seconds in its manifest, and without what it was compared with.

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


def _usable(records: Sequence[Record], modules: Mapping[str, str]) -> list[Record]:
    """Those of the model's workloads; of what was imported only the first few, because each may cost a
    process."""
    imported: Counter[str] = Counter()
    found: list[Record] = []
    for record in records:
        imported[record.workload_hash] += record.source == "import"
        is_strange = record.source == "import" and imported[record.workload_hash] > MAX_IMPORTED
        if record.workload_hash in modules and not is_strange:
            found.append(record)
    return found


def _refused(
    modules: Mapping[str, str], chosen: Mapping[str, Record], target: str, apart: Collection[str]
) -> dict[Schedule, str]:
    """What is wrong with records that don't apply. What strangers sent, and records of the workloads `apart`,
    are tried in another process first, and compiled there."""
    strange = [name for name, record in chosen.items() if record.source == "import" or name in apart]
    tried = check_traces([(modules[name], chosen[name].trace) for name in strange], target)
    problems = dict(zip(strange, tried, strict=True))
    refused: dict[Schedule, str] = {}
    for name, record in chosen.items():
        problem = problems.get(name) or _problem(modules[name], record.trace)
        if problem:
            log.warning("a schedule of %s (%s) is left out: %s", name, record.source, problem)
            refused[schedule_of(record)] = problem
    return refused


def _problem(module_json: str, trace: str) -> str:
    """Why a trace doesn't apply; empty when it does."""
    try:
        apply_trace(from_json(module_json), trace)
    except LoweringError as error:
        return str(error)
    return ""


def _entry(task: ExtractedTask, plan: Plan) -> TaskEntry:
    reason = plan.reasons.get(task.workload_hash, "")
    record = plan.chosen.get(task.workload_hash)
    if record is None:
        return TaskEntry(task.workload_hash, task.name, task.weight, reason=reason)
    return TaskEntry(
        task.workload_hash, task.name, task.weight, record.trace, record.latency_s, record.source, reason
    )


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
        versions=_versions(device),
        created_at=now,
        tasks=entries,
    )


def _versions(device: Device) -> Mapping[str, str]:
    return {name: version(name) for name in PACKAGES} | {"device toolchain": device.toolchain}
