"""Write and read schedules as the two files of a MetaSchedule database. Needs TVM."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from core.exit_code import ExitCode
from system.command import CommandError
from system.new_file import new_file
from tunefarm.client.values import ExportedRecord, ExportedWorkload, ScheduleDatabase
from tunefarm.errors import InputError

WORKLOAD_FILE = "database_workload.json"
RECORD_FILE = "database_tuning_record.json"


@dataclass(frozen=True)
class ExportCounts:
    """The number of workloads and records that an export wrote."""

    workloads: int
    records: int


def write(database: ScheduleDatabase, folder: Path) -> ExportCounts:
    """Write both files into a folder.

    Raises CommandError without TVM, if the folder can't be written, and for damaged records.
    """
    metaschedule = load_compiler("compiler.packaging.metaschedule")
    modules = {workload.hash: workload.module_json for workload in database.workloads}
    records = [
        metaschedule.ImportedRecord(
            one.workload, modules.get(one.workload, ""), one.trace, one.run_s, one.target
        )
        for one in database.records
    ]
    try:
        workload_text, record_text = metaschedule.export_database(records, modules)
        with new_file(folder / WORKLOAD_FILE) as workloads, new_file(folder / RECORD_FILE) as written:
            workloads.write(workload_text.encode())
            written.write(record_text.encode())
    except (KeyError, ValueError) as error:
        raise CommandError(f"the service sent damaged records: {error}", ExitCode.REFUSED) from error
    except OSError as error:
        raise CommandError(f"{folder} can't be written ({error.strerror})", ExitCode.LOCAL) from error
    return ExportCounts(len({record.workload_hash for record in records}), len(records))


def read(folder: Path) -> ScheduleDatabase:
    """Read both files.

    Raises InputError with the file and line that can't be used, and CommandError without TVM.
    """
    texts = []
    for path in (folder / WORKLOAD_FILE, folder / RECORD_FILE):
        hint = "name the folder of a MetaSchedule database"
        try:
            texts.append(path.read_text())
        except UnicodeDecodeError as error:
            raise InputError(f"{path} is no text: {hint}") from error
        except OSError as error:
            raise InputError(f"{path} can't be read ({error.strerror}): {hint}") from error
    metaschedule = load_compiler("compiler.packaging.metaschedule")
    try:
        records = list(metaschedule.import_database(*texts))
    except metaschedule.DatabaseFormatError as error:
        raise InputError(f"{folder} is no MetaSchedule database: {error}") from error
    modules = {record.workload_hash: record.module_json for record in records}
    return ScheduleDatabase(
        tuple(ExportedWorkload(name, module_json) for name, module_json in modules.items()),
        tuple(ExportedRecord(one.workload_hash, one.trace, one.run_s, one.target) for one in records),
    )


def load_compiler(module: str) -> ModuleType:
    """Import a module that loads TVM. Raises CommandError if TVM isn't installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise CommandError(
            f"this command needs TVM ({error}): install it with pip install 'tunefarm[tvm]'", ExitCode.LOCAL
        ) from error
