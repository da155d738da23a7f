"""The body of an import, decoded from a client's JSON.

msgspec builds only what is declared here, and stops at the first fault. Pydantic collects every fault: 4 MiB
of empty objects took 6 GiB.
"""

from __future__ import annotations

import json
import re
from typing import Annotated

import msgspec
from msgspec import Meta

from core.target import MAX_TARGET_CHARS, TargetRefused, rewrite_target
from core.trace import TraceRefused, parse_trace, write_trace
from server.fleet.plausibility import MAX_PLAUSIBLE_S, MIN_PLAUSIBLE_S
from server.problems import Problem

MAX_BYTES = 16 << 20
MAX_RECORDS = 10_000
MAX_REPEATS = 10_000
MAX_TRACE_CHARS = 4 << 20
HASH = "^[0-9A-Za-z_-]{1,128}$"
_HASH = re.compile(HASH)


class ImportedWorkload(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A workload: its hash and its TVM module as JSON."""

    hash: str
    module_json: str


class ImportedRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A schedule of a workload; `run_s` are the seconds that its database reports."""

    workload: str
    trace: Annotated[str, Meta(max_length=MAX_TRACE_CHARS)]
    run_s: Annotated[
        list[Annotated[float, Meta(ge=MIN_PLAUSIBLE_S, le=MAX_PLAUSIBLE_S)]],
        Meta(min_length=1, max_length=MAX_REPEATS),
    ]
    target: Annotated[str, Meta(max_length=MAX_TARGET_CHARS)]


class ImportBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Workloads, and records of these."""

    workloads: Annotated[list[ImportedWorkload], Meta(max_length=MAX_RECORDS)]
    records: Annotated[list[ImportedRecord], Meta(max_length=MAX_RECORDS)]


_DECODER = msgspec.json.Decoder(ImportBody)


def decode(data: bytes) -> ImportBody:
    """Decode and check the whole body. Return it with traces and targets rewritten from their checked parts.
    Raises Problem."""
    try:
        body = _DECODER.decode(data)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        raise _invalid(place.strip(".`"), message) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise _invalid("", f"the body is not JSON: {error}") from error
    for number, workload in enumerate(body.workloads):
        if not _HASH.match(workload.hash):
            raise _invalid(f"workloads[{number}].hash", f"a hash has the form {HASH}")
        _check_json(f"workloads[{number}].module_json", workload.module_json)
    hashes = {workload.hash for workload in body.workloads}
    records = []
    for number, record in enumerate(body.records):
        if record.workload not in hashes:
            detail = f"A record's workload {record.workload:.128} is not among the workloads: send it along."
            raise Problem(422, "workload-missing", detail)
        try:
            target = rewrite_target(record.target)
        except TargetRefused as error:
            raise _invalid(f"records[{number}].target", str(error)) from error
        _check_json(f"records[{number}].trace", record.trace)
        try:
            trace = write_trace(parse_trace(record.trace))
        except TraceRefused as error:
            raise Problem(422, "trace-refused", f"Nothing was imported: {error}.") from error
        records.append(msgspec.structs.replace(record, trace=trace, target=target))
    return ImportBody(body.workloads, records)


def _check_json(where: str, text: str) -> None:
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _invalid(where, f"a text that should be JSON is not: {error}") from error


def _invalid(where: str, message: str) -> Problem:
    detail = f"{where}: {message[:1].lower()}{message[1:]}" if where else message
    return Problem(422, "invalid-request", detail, errors=[{"where": where, "detail": detail}])
