"""Pack the compiled model as an artifact, and exclude schedules that can't be compiled."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import IO

from compiler import fallback
from compiler.children.models import ImportedModel
from compiler.importing.model import ExtractedTask
from compiler.lowering.trace import LoweringError, apply_trace
from compiler.packaging.artifact import (
    Manifest,
    TaskEntry,
    Verification,
    instructions_of,
    open_artifact,
    write,
)
from compiler.workload import from_json
from core.device import Device
from core.lease import ModuleKind
from core.model_latency import base_workload
from core.quantization import Quantization
from records.jobs.jobs import Job
from records.jobs.trials import FALLBACK
from records.schedules.schedules import Record
from scheduler.model_compiler import CheckTraces
from scheduler.steps.selection import AssemblyHistory, ScheduleId, Selection, next_selection, schedule_id

PACKAGES = ("apache-tvm", "apache-tvm-ffi")
# The most imported schedules to try for a task, fastest first: each may cost a process.
MAX_FOREIGN = 4
# The most subgraphs that a message names.
MAX_NAMED = 3

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CompiledModel:
    """A job's model, imported and compiled into a library for a device."""

    job: Job
    device: Device
    imported: ImportedModel
    library: IO[bytes]


def write_untuned(file: IO[bytes], model: CompiledModel, now: float) -> None:
    """Write the artifact of an untuned model."""
    write(file, model.library, _manifest(model, (), now))


def write_tuned(
    file: IO[bytes],
    model: CompiledModel,
    selection: Selection,
    reference: IO[bytes] | None,
    reasons: Mapping[str, str],
    now: float,
) -> None:
    """Write the artifact of a model with the selected schedules. Other workloads have their fallback
    schedule. If a library `reference` is given, a device compares the outputs of both. `reasons`
    maps workloads to the reasons why they aren't tuned.
    """
    tasks = {task.workload_hash: task for task in model.imported.tasks}
    entries = []
    for own in model.imported.tasks:
        if own.variant:
            continue
        record = selection.chosen.get(own.workload_hash)
        task = own if record is None else tasks[record.workload_hash]
        reason = selection.reasons.get(own.workload_hash) or reasons.get(own.workload_hash, "")
        entry = TaskEntry(task.workload_hash, task.name, own.weight, reason=reason, variant=task.variant)
        if record is not None:
            source = "fallback" if record.program == FALLBACK else record.source
            entry = replace(entry, trace=record.trace, latency_s=record.latency_s, source=source)
        entries.append(entry)
    weighted_s = [entry.weight * (entry.latency_s or 0.0) for entry in entries]
    shared = tuple(
        replace(entry, share=own_s / sum(weighted_s)) if own_s else entry
        for entry, own_s in zip(entries, weighted_s, strict=True)
    )
    write(file, model.library, _manifest(model, shared, now), reference)


def select_applicable(
    tasks: Sequence[ExtractedTask],
    records: Sequence[Record],
    target: str,
    history: AssemblyHistory,
    check_traces: CheckTraces,
) -> Selection | None:
    """Return the next selection whose traces all apply to their workloads; None if there is none. A
    workload's `records` are ordered fastest first.
    """
    modules = {task.workload_hash: task.module_json for task in tasks}
    bases = {task.workload_hash: base_workload(task) for task in tasks}
    num_foreign: Counter[str] = Counter()
    usable: list[Record] = []
    for record in records:
        num_foreign[record.workload_hash] += record.is_foreign
        is_surplus = record.is_foreign and num_foreign[record.workload_hash] > MAX_FOREIGN
        if record.workload_hash in modules and not is_surplus:
            usable.append(record)
    # If one of a workload's schedules doesn't compile, the next may not compile either.
    suspicious = {workload for workload, _ in history.refused}
    while (selection := next_selection(usable, history, bases)) is not None:
        refused = _refused(modules, selection.chosen, target, suspicious, check_traces)
        if not refused:
            return selection
        history = replace(history, refused={**history.refused, **refused})
    return None


def find_uncompilable(
    tasks: Sequence[ExtractedTask], selection: Selection, target: str, check_traces: CheckTraces
) -> dict[ScheduleId, str]:
    """Compile each schedule of a selection alone in a child process. Return the failing ones with the
    reasons.
    """
    modules = {task.workload_hash: task.module_json for task in tasks}
    return _refused(modules, selection.chosen, target, selection.traces.keys(), check_traces)


def find_unschedulable(
    tasks: Sequence[ExtractedTask], scheduled: Collection[str], target: str, check_traces: CheckTraces
) -> dict[str, str]:
    """Compile the fallback schedule of each workload that isn't `scheduled`, alone, in a child process.
    Return the workloads that fail, with the reasons.
    """
    modules = {
        task.workload_hash: task.module_json
        for task in tasks
        if not task.variant and task.workload_hash not in scheduled
    }
    pairs = [(text, fallback.trace(from_json(text))) for text in modules.values()]
    problems = zip(modules, check_traces(pairs, target), strict=True)
    return {workload: problem for workload, problem in problems if problem}


def describe_replaced(manifest: Manifest) -> str:
    """Describe which subgraphs don't run their best schedule, and why; "" if all do."""
    listed = [entry for entry in manifest.tasks if entry.reason]
    if not listed:
        return ""
    run = "runs" if len(listed) == 1 else "run"
    kinds = {
        "the fallback schedule" if entry.source == "fallback" else "a slower schedule" for entry in listed
    }
    shares = [entry.share for entry in listed if entry.share is not None]
    least = "" if len(shares) == len(listed) else "at least "
    time = f" ({least}{sum(shares):.1%} of the time)" if shares else ""
    named = "; ".join(f"{entry.name}: {entry.reason}" for entry in listed[:MAX_NAMED])
    more = f"; and {len(listed) - MAX_NAMED} more, see the manifest" if len(listed) > MAX_NAMED else ""
    count = f"{len(listed)} of {len(manifest.tasks)} subgraphs"
    return f"{count} {run} {' or '.join(sorted(kinds, reverse=True))}{time}: {named}{more}"


def write_timed(
    file: IO[bytes],
    artifact: IO[bytes],
    secs: Mapping[ModuleKind, tuple[float, ...]],
    verification: Verification,
    quantization: Quantization | None,
    sign: Callable[[bytes], str] | None,
) -> Manifest:
    """Rewrite the artifact without its reference library, adding end-to-end seconds, verification and
    quantization to its manifest. Return the manifest, which `sign` signs. Raises ArtifactError.
    """
    library, manifest = open_artifact(artifact)
    if manifest.verification is not None:  # it was compared when it was published first
        compared = manifest.verification.outputs_unverified
        verification = replace(verification, outputs_unverified=compared)
    digest = hashlib.file_digest(library, "sha256").hexdigest()  # type: ignore[arg-type]  # any file
    timed = replace(
        manifest,
        untuned_s=secs.get("untuned", ()),
        tuned_s=secs.get("tuned", ()),
        published_s=secs.get("published", ()),
        library_sha256=digest,
        verification=verification,
        quantization=None if quantization is None else replace(quantization, layers=()),
    )
    write(file, library, timed, sign=sign)
    return timed


def _refused(
    modules: Mapping[str, str],
    chosen: Mapping[str, Record],
    target: str,
    suspicious: Collection[str],
    check_traces: CheckTraces,
) -> dict[ScheduleId, str]:
    """Return the schedules whose traces don't apply, and why. Imported schedules and schedules of
    `suspicious` workloads may crash or hang the compiler, so they are applied and compiled only in a child
    process.
    """
    records = {record.workload_hash: record for record in chosen.values()}
    risky = [name for name, record in records.items() if record.is_foreign or name in suspicious]
    checked = check_traces([(modules[name], records[name].trace) for name in risky], target)
    problems = dict(zip(risky, checked, strict=True))
    refused: dict[ScheduleId, str] = {}
    for name, record in records.items():
        problem = problems.get(name, "")
        if name not in problems:
            try:
                apply_trace(from_json(modules[name]), record.trace)
            except LoweringError as error:
                problem = str(error)
        if problem:
            log.warning("a schedule of %s is left out: %s", name, problem)
            refused[schedule_id(record)] = problem
    return refused


def _manifest(model: CompiledModel, entries: tuple[TaskEntry, ...], now: float) -> Manifest:
    job, device, imported = model.job, model.device, model.imported
    return Manifest(
        model_name=job.request.model_name,
        model_sha=job.request.model_sha,
        target=device.target,
        device_class=device.key,
        inputs=imported.inputs,
        outputs=imported.outputs,
        threads=1 if device.gpu else device.cores,
        versions={name: version(name) for name in PACKAGES} | {"device toolchain": device.toolchain},
        created_at=now,
        tasks=entries,
        computed_in=imported.computed_in,
        instructions=instructions_of(model.library, device.target),
        cache=imported.cache,
        no_cache=imported.no_cache,
    )
