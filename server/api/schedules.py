"""`/v1/schedules`: the best schedules known, and export and import of all schedules of a device class."""

from __future__ import annotations

import asyncio
import json
import statistics
from collections.abc import Iterator
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from core.measurement import Outcome
from core.trace import TraceRefused, parse_trace
from records.jobs import jobs, tasks
from records.schedules import schedules
from records.schedules.schedules import Record
from server.api.fields import Name, RequestBody
from server.api.targets import NATIVE, device_class
from server.context import ContextDep, ServerContext
from server.fleet.plausibility import LONGEST_S
from server.problems import Problem, problems

router = APIRouter(prefix="/v1/schedules", tags=["schedules"])

_EXPORTED_AT_ONCE = 20
_EXPORT_ANSWER = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/ExportBody"}}}}
_IMPORT_BODY = {"requestBody": {"required": True, **_EXPORT_ANSWER}}


def _json(text: str) -> str:
    try:
        json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"a text that should be JSON is not: {error}") from error
    return text


WorkloadHash = Annotated[str, Field(pattern="^[0-9A-Za-z_-]{1,128}$")]
JsonText = Annotated[str, AfterValidator(_json)]
RunSecs = Annotated[float, Field(gt=0, le=LONGEST_S, allow_inf_nan=False)]


class ScheduleBody(BaseModel):
    """A workload's fastest known schedule on a device class: a TVM trace to replay on the workload.

    `latency_s` and `run_secs` are seconds, `created_at` is epoch seconds.
    """

    workload: str
    device_class: str
    trace: str
    target: str
    latency_s: float
    run_secs: list[float]
    source: Literal["trial", "import"]
    created_at: float

    @classmethod
    def of(cls, record: Record) -> ScheduleBody:
        assert record.latency_s is not None, "only successful records are schedules"
        return cls(
            workload=record.workload_hash,
            device_class=record.device_class,
            trace=record.trace,
            target=record.target,
            latency_s=record.latency_s,
            run_secs=list(record.run_secs),
            source=record.source,
            created_at=record.created_at,
        )


class ScheduleQueryBody(RequestBody):
    target: Name = NATIVE
    workloads: list[WorkloadHash] = Field(max_length=10_000)


class SchedulesBody(BaseModel):
    """Schedules by workload; null for a workload without one."""

    device_class: str
    schedules: dict[str, ScheduleBody | None]


class ExportedWorkloadBody(RequestBody):
    hash: WorkloadHash
    module_json: JsonText = Field(min_length=2, max_length=64 << 20)


class ExportedRecordBody(RequestBody):
    """`trace` and `target` are JSON, as in MetaSchedule's files; `run_secs` are seconds."""

    workload: WorkloadHash
    trace: JsonText = Field(min_length=2, max_length=4 << 20)
    run_secs: list[RunSecs] = Field(min_length=1, max_length=10_000)
    target: JsonText = Field(min_length=2, max_length=65536)


class ExportBody(RequestBody):
    """What export returns and import takes. Every record's workload is among the workloads."""

    workloads: list[ExportedWorkloadBody]
    records: list[ExportedRecordBody]


class ImportedBody(BaseModel):
    """How many `records` were sent to a device class, and how many of them were `added`."""

    device_class: str
    records: int
    added: int


@router.get("/best", responses=problems(404))
def best(
    context: ContextDep, workload: Annotated[WorkloadHash, Query()], target: Annotated[Name, Query()] = NATIVE
) -> ScheduleBody:
    """Return the fastest schedule known of one workload."""
    with context.database.begin() as session:
        key = device_class(session, target)
        record = schedules.best(session, workload, key)
    if record is None:
        detail = f"No schedule is known of workload {workload} on {key}: tune a model that has it."
        raise Problem(404, "no-schedule", detail)
    return ScheduleBody.of(record)


@router.post(":query", responses=problems(400))
def query(body: ScheduleQueryBody, context: ContextDep) -> SchedulesBody:
    """Return the fastest schedules known of many workloads at once."""
    with context.database.begin() as session:
        key = device_class(session, body.target)
        found = schedules.best_many(session, body.workloads, key)
    by_hash = {name: ScheduleBody.of(found[name]) if name in found else None for name in body.workloads}
    return SchedulesBody(device_class=key, schedules=by_hash)


@router.get(
    "/export",
    response_class=StreamingResponse,
    responses={200: {"model": ExportBody}, **problems(404, 409)},
)
def export(
    context: ContextDep,
    target: Annotated[Name | None, Query()] = None,
    job: Annotated[Name | None, Query(description="only the workloads of this job, on its device")] = None,
) -> StreamingResponse:
    """Return every schedule that worked on a device class, fastest first by workload, with their workloads.

    The answer is streamed; one that ends early is not valid JSON.
    """
    if job is not None and target is not None:
        raise Problem(422, "job-or-target", "Give a job or a target, not both: a job has its own target.")
    with context.database.begin() as session:
        if job is None:
            records = schedules.successes(session, device_class(session, target or NATIVE))
        else:
            key = jobs.get(session, job).device_class
            if key is None:
                detail = f"Job {job} has no device yet: wait until it has started."
                raise Problem(409, "job-not-started", detail)
            hashes = [task.workload_hash for task in tasks.for_job(session, job)]
            records = schedules.successes(session, key, hashes)
    return StreamingResponse(_export(context, records), media_type="application/json")


@router.post("/import", openapi_extra=_IMPORT_BODY)
async def import_(
    request: Request, context: ContextDep, target: Annotated[Name, Query()] = NATIVE
) -> ImportedBody:
    """Add the schedules of another database to a device class; those already known stay as they are.

    The body is what export returns. Nothing is stored unless all of it can be.
    """
    text = await request.body()
    imported = await asyncio.to_thread(_import, context, text, target)
    request.state.audited = imported.device_class
    return imported


def _export(context: ServerContext, records: list[Record]) -> Iterator[str]:
    """Yield an ExportBody as JSON, with few workloads in memory at once."""
    hashes = list(dict.fromkeys(record.workload_hash for record in records))
    separator = ""
    yield '{"workloads":['
    for start in range(0, len(hashes), _EXPORTED_AT_ONCE):
        with context.database.begin() as session:
            found = tasks.workloads(session, hashes[start : start + _EXPORTED_AT_ONCE])
        for name, module_json in found.items():
            yield separator + ExportedWorkloadBody(hash=name, module_json=module_json).model_dump_json()
            separator = ",\n"
    separator = ""
    yield '],"records":['
    for record in records:
        exported = ExportedRecordBody(
            workload=record.workload_hash,
            trace=record.trace,
            run_secs=list(record.run_secs),
            target=record.target,
        )
        yield separator + exported.model_dump_json()
        separator = ",\n"
    yield "]}"


def _import(context: ServerContext, text: bytes, target: str) -> ImportedBody:
    try:
        body = ExportBody.model_validate_json(text)
    except ValidationError as error:
        parts = [{**part, "loc": ("body", *part["loc"])} for part in error.errors()]
        raise RequestValidationError(parts) from error
    hashes = {workload.hash for workload in body.workloads}
    for exported in body.records:
        if exported.workload not in hashes:
            detail = f"A record's workload {exported.workload} is not among the workloads: send it along."
            raise Problem(422, "workload-missing", detail)
    now = context.now()
    with context.database.begin() as session:
        key = device_class(session, target)
        records = [
            Record(
                workload_hash=exported.workload,
                device_class=key,
                trace=exported.trace,
                program=None,
                latency_s=statistics.median(exported.run_secs),
                run_secs=tuple(exported.run_secs),
                outcome=Outcome.OK,
                target=exported.target,
                source="import",
                created_at=now,
            )
            for exported in body.records
        ]
        try:
            for record in body.records:
                parse_trace(record.trace)
        except TraceRefused as error:
            raise Problem(422, "trace-refused", f"Nothing was imported: {error}.") from error
        for workload in body.workloads:
            tasks.put_workload(session, workload.hash, workload.module_json)
        added = schedules.add_imported(session, records, now)
    return ImportedBody(device_class=key, records=len(body.records), added=added)
