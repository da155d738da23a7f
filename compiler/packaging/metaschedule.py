"""Read and write MetaSchedule databases: two files with one JSON value per line.

database_workload.json        ["<structural hash>", "<base64 of the length and the JSON of the IRModule>"]
database_tuning_record.json   [<line of the workload, from 0>, [trace, run_s, target, args_info]]
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import tvm
from tvm.s_tir.meta_schedule.arg_info import ArgInfo

from compiler.workload import from_json, to_json, workload_hash
from core.target import TargetRefused, rewrite_target
from core.trace import TraceRefused, parse_trace, write_trace

WORKLOAD_FILE = "database_workload.json"
RECORD_FILE = "database_tuning_record.json"
MAX_FILE_CHARS = 1 << 30
# MetaSchedule stores failed candidates with this run time or a longer one.
FAILED_S = 1e9
# The JSON of a module follows its length: eight bytes, little-endian.
LENGTH_BYTES = 8


class DatabaseFormatError(ValueError):
    """A file is not what MetaSchedule writes. The message names the file and the line."""


class ScheduleRecord(Protocol):
    """The fields of a stored record that export needs. `trace` and `target` are JSON texts; `run_s` has one
    value per repeat.
    """

    @property
    def workload_hash(self) -> str: ...
    @property
    def trace(self) -> str: ...
    @property
    def run_s(self) -> Sequence[float]: ...
    @property
    def target(self) -> str: ...


@dataclass(frozen=True)
class ImportedRecord:
    """One record of a MetaSchedule database with its workload; `target` and `trace` are JSON texts."""

    workload_hash: str
    module_json: str
    trace: str
    run_s: tuple[float, ...]
    target: str


def export_database(records: Iterable[ScheduleRecord], workloads: Mapping[str, str]) -> tuple[str, str]:
    """Return the texts of the workload file and the record file.

    `workloads` maps hashes to module texts; workloads without a record are left out. Raises KeyError for a
    record whose workload is missing. Raises ValueError for texts that are damaged or do more than compute and
    schedule, because other TVM programs read the files.
    """
    lines: dict[str, int] = {}
    arguments: dict[str, Any] = {}
    workload_lines, record_lines = [], []
    for record in records:
        name = record.workload_hash
        if name not in lines:
            lines[name] = len(lines)
            module = from_json(workloads[name])
            data = to_json(module).encode()
            encoded = base64.b64encode(len(data).to_bytes(LENGTH_BYTES, "little") + data).decode()
            workload_lines.append(_line([name, encoded]))
            arguments[name] = _describe_arguments(module)
        target = json.loads(rewrite_target(record.target))
        fields = [parse_trace(record.trace), list(record.run_s), target, arguments[name]]
        record_lines.append(_line([lines[name], fields]))
    return "".join(workload_lines), "".join(record_lines)


def import_database(workload_text: str, record_text: str) -> Iterator[ImportedRecord]:
    """Yield the records that have timings, in the order of the file.

    Hashes are recomputed, because another version of TVM may hash differently. Candidates that failed and
    records without timings are left out. Raises DatabaseFormatError, also for a workload or a trace that does
    more than compute and schedule.
    """
    workloads = [_parse_workload(number, value) for number, value in _values(WORKLOAD_FILE, workload_text)]
    for number, value in _values(RECORD_FILE, record_text):
        record = _parse_record(number, value, workloads)
        if record is not None:
            yield record


def _line(value: object) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


def _describe_arguments(module: tvm.IRModule) -> list[Any]:
    """Return the kind, element type and shape of every argument, in MetaSchedule's format (args_info)."""
    infos = ArgInfo.from_prim_func(module["main"])
    return [
        [str(kind), str(dtype), [int(n) for n in shape]] for kind, dtype, shape in map(ArgInfo.as_json, infos)
    ]


def _values(file: str, text: str) -> Iterator[tuple[int, Any]]:
    """Yield the number (from 1) and the value of every line that isn't empty."""
    if len(text) > MAX_FILE_CHARS:
        raise DatabaseFormatError(f"{file} has more than {MAX_FILE_CHARS} characters")
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DatabaseFormatError(f"{file}, line {number}: not a JSON value: {error}") from error


def _parse_workload(number: int, value: Any) -> tuple[str, str]:
    """Return the hash and the module text of a line of the workload file."""
    match value:
        case [str(), str(encoded)]:
            pass
        case _:
            raise DatabaseFormatError(f"{WORKLOAD_FILE}, line {number}: not [hash, base64 of a module]")
    try:
        data = base64.b64decode(encoded, validate=True)
        mod = from_json(data[LENGTH_BYTES:].decode())
    except (binascii.Error, ValueError) as error:
        raise DatabaseFormatError(f"{WORKLOAD_FILE}, line {number}: {error}") from error
    return workload_hash(mod), to_json(mod)


def _parse_record(number: int, value: Any, workloads: Sequence[tuple[str, str]]) -> ImportedRecord | None:
    """Return the record on a line of the record file; None for one without timings."""
    match value:
        case [int(index), [[list(), list()] as trace, secs, (dict() | str()) as target, *_]]:
            pass
        case _:
            raise DatabaseFormatError(
                f"{RECORD_FILE}, line {number}: not [workload, [trace, run_s, target, args_info]]"
            )
    if not 0 <= index < len(workloads):
        raise DatabaseFormatError(f"{RECORD_FILE}, line {number}: there is no workload {index}")
    run_s = _parse_run_s(number, secs)
    if run_s is None:
        return None
    name, module_json = workloads[index]
    try:
        trace_text = write_trace(parse_trace(json.dumps(trace)))
        target_text = rewrite_target(json.dumps(target))
    except (TraceRefused, TargetRefused) as error:
        raise DatabaseFormatError(f"{RECORD_FILE}, line {number}: {error}") from error
    return ImportedRecord(name, module_json, trace_text, run_s, target_text)


def _parse_run_s(number: int, secs: Any) -> tuple[float, ...] | None:
    """Return the seconds; None if there are none or the candidate failed."""
    if secs is None or secs == []:
        return None
    if not isinstance(secs, list) or any(isinstance(s, bool) or not isinstance(s, int | float) for s in secs):
        raise DatabaseFormatError(f"{RECORD_FILE}, line {number}: run_s is not a list of seconds")
    if any(not math.isfinite(s) or s <= 0 for s in secs):
        raise DatabaseFormatError(f"{RECORD_FILE}, line {number}: run_s must be positive and finite")
    return None if max(secs) >= FAILED_S else tuple(float(s) for s in secs)
