"""The programs that jobs have measured, from their databases: groups by task, for a fit that leaves out one
network at a time."""

from __future__ import annotations

import shutil
import statistics
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from benchmarks.fit.programs import Group, Measurements, ProgramsError
from compiler.measuring.gpu_calibration import check_possible, complete_gpu_profile
from compiler.reading.subgraph import UnsupportedSubgraph, read_dag
from compiler.workload import from_json as workload_from_json
from core.device import Device
from core.measurement import Outcome
from records import devices
from records.jobs import jobs, tasks, trials
from records.jobs.trials import Trial
from records.storage.database import Database, StorageError
from search.programs.program import from_json
from search.rules.space import generate


def read_databases(files: Sequence[Path]) -> list[Group]:
    """Read the tasks of all jobs in the databases of data folders, without changing them. A group's
    `operator` is the name of its network. Raises ProgramsError."""
    found: list[Group] = []
    for file in files:
        if not file.is_file():
            raise ProgramsError(f"there is no database {file}")
        with tempfile.TemporaryDirectory(prefix="tunefarm-benchmark-") as folder:
            copied = Path(shutil.copy(file, Path(folder) / "tunefarm.db"))
            try:
                database = Database(f"sqlite:///{copied}")
                database.migrate()
                found += _groups(database)
                database.close()
            except StorageError as error:
                raise ProgramsError(f"{file} can't be read: {error}") from error
    if not found:
        raise ProgramsError("no program was measured in there: tune a network first")
    return found


def _groups(database: Database) -> list[Group]:
    found = []
    with database.begin() as session:
        for job in jobs.list_jobs(session, 200, None):
            if job.device_class is None:
                continue
            device = without_impossible_speeds(devices.get_class(session, job.device_class))
            for task in tasks.for_job(session, job.id):
                measured = [one for one in trials.for_task(session, task.id) if one.outcome is Outcome.OK]
                if not measured:
                    continue
                module = tasks.workload(session, task.workload_hash)
                group = _group(job.request.model_name, task.name, module, device, measured)
                found += [group] if group is not None else []
    return found


def without_impossible_speeds(device: Device) -> Device:
    """Return a GPU whose speeds that no hardware reaches are assumed. Earlier versions stored them."""
    if device.profile is None or device.gpu is None:
        return device
    profile = device.profile
    possible: dict[str, Any] = {"multiply_adds": profile.multiply_adds}
    for name in {one.name for one in fields(profile)} - {"multiply_adds", "derived", *profile.derived}:
        value = getattr(profile, name)
        with suppress(ValueError):
            check_possible({name: value}, device.cores)
            possible[name] = value
    return replace(device, profile=complete_gpu_profile(possible, device))


def _group(network: str, task: str, module: str, device: Device, measured: Sequence[Trial]) -> Group | None:
    """Return the successful programs of a task; None if none belongs to the current sketches."""
    try:
        sketches = generate(read_dag(workload_from_json(module)), device)
    except UnsupportedSubgraph:
        return None
    measurements, earlier = Measurements(), dict[str, int]()
    for trial in measured:
        # The runs of a repeated trial begin with those of the earlier ones.
        runs = trial.run_s[earlier.get(trial.trace, 0) :]
        earlier[trial.trace] = len(trial.run_s)
        if trial.program is None or not runs:
            continue  # the fallback schedule isn't a program of the search
        with suppress(ValueError):  # the rules don't derive its sketch any more
            measurements.add(trial.id, from_json(sketches, trial.program), statistics.median(runs))
    return measurements.group(f"{network}: {task}", network, (), 1, device.name, device)
