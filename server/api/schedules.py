"""`/v1/schedules`: the best schedules known, and whole databases of them in and out."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import StreamingResponse
from pydantic import ValidationError
from sqlalchemy.orm import Session

from core.measurement import Outcome
from core.trace import TraceRefused, parse_trace
from records.jobs import jobs, tasks
from records.schedules import schedules
from records.schedules.schedules import Record
from server.api.problems import Problem, problems
from server.api.schemas import (
    ExportBody,
    ExportedRecord,
    ExportedWorkload,
    ImportedBody,
    Name,
    ScheduleBody,
    ScheduleQueryBody,
    SchedulesBody,
    WorkloadHash,
)
from server.api.targets import NATIVE, device_class
from server.context import ContextDep, ServerContext

router = APIRouter(prefix="/v1/schedules", tags=["schedules"])

_WORKLOADS_AT_ONCE = 20
_EXPORT_ANSWER = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/ExportBody"}}}}
_IMPORT_BODY = {"requestBody": {"required": True, **_EXPORT_ANSWER}}


@router.get("/best", responses=problems(404))
def best(
    context: ContextDep, workload: Annotated[WorkloadHash, Query()], target: Annotated[Name, Query()] = NATIVE
) -> ScheduleBody:
    """The fastest schedule known of one workload."""
    with context.database.begin() as session:
        key = device_class(session, target)
        record = schedules.best(session, workload, key)
    if record is None:
        detail = f"No schedule is known of workload {workload} on {key}: tune a model that has it."
        raise Problem(404, "no-schedule", detail)
    return ScheduleBody.of(record)


@router.post(":query", responses=problems(400))
def query(body: ScheduleQueryBody, context: ContextDep) -> SchedulesBody:
    """The fastest schedules known of many workloads at once."""
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
    """Every schedule that worked on a device class, fastest first by workload, with their workloads.

    The answer is streamed; one that ends early is not valid JSON.
    """
    if job is not None and target is not None:
        raise Problem(422, "job-or-target", "Give a job or a target, not both: a job has its own target.")
    with context.database.begin() as session:
        records = _of_job(session, job) if job is not None else _of_target(session, target or NATIVE)
    return StreamingResponse(_export(context, records), media_type="application/json")


@router.post("/import", openapi_extra=_IMPORT_BODY)
async def import_(
    request: Request, context: ContextDep, target: Annotated[Name, Query()] = NATIVE
) -> ImportedBody:
    """Adds the schedules of another database to a device class; those already known stay as they are.

    The body is what export gives. Nothing is stored unless all of it can be.
    """
    text = await request.body()
    imported = await asyncio.to_thread(_import, context, text, target)
    request.state.audited = imported.device_class
    return imported


def _of_job(session: Session, job_id: str) -> list[Record]:
    job = jobs.get(session, job_id)
    if job.device_class is None:
        raise Problem(409, "job-not-started", f"Job {job_id} has no device yet: wait until it has started.")
    hashes = [task.workload_hash for task in tasks.for_job(session, job_id)]
    return schedules.successes(session, job.device_class, hashes)


def _of_target(session: Session, target: str) -> list[Record]:
    return schedules.successes(session, device_class(session, target))


def _export(context: ServerContext, records: list[Record]) -> Iterator[str]:
    hashes = list(dict.fromkeys(record.workload_hash for record in records))
    yield '{"workloads":['
    yield from _separated(_exported_workloads(context, hashes))
    yield '],"records":['
    yield from _separated(_exported_record(record).model_dump_json() for record in records)
    yield "]}"


def _separated(texts: Iterator[str]) -> Iterator[str]:
    for index, text in enumerate(texts):
        yield f",\n{text}" if index else text


def _exported_workloads(context: ServerContext, hashes: list[str]) -> Iterator[str]:
    for start in range(0, len(hashes), _WORKLOADS_AT_ONCE):
        some = hashes[start : start + _WORKLOADS_AT_ONCE]
        with context.database.begin() as session:
            found = tasks.workloads(session, some)
        for name, module_json in found.items():
            yield ExportedWorkload(hash=name, module_json=module_json).model_dump_json()


def _exported_record(record: Record) -> ExportedRecord:
    return ExportedRecord(
        workload=record.workload_hash,
        trace=record.trace,
        run_secs=list(record.run_secs),
        target=record.target,
    )


def _import(context: ServerContext, text: bytes, target: str) -> ImportedBody:
    body = _parsed(text)
    named = {workload.hash for workload in body.workloads}
    for record in body.records:
        if record.workload not in named:
            detail = f"A record's workload {record.workload} is not among the workloads: send it along."
            raise Problem(422, "workload-missing", detail)
    now = context.now()
    with context.database.begin() as session:
        key = device_class(session, target)
        records = [_record(one, key, now) for one in body.records]
        try:
            for record in body.records:
                parse_trace(record.trace)
        except TraceRefused as error:
            raise Problem(422, "trace-refused", f"Nothing was imported: {error}.") from error
        for workload in body.workloads:
            tasks.put_workload(session, workload.hash, workload.module_json)
        added = schedules.add_imported(session, records, now)
    return ImportedBody(device_class=key, records=len(body.records), added=added)


def _parsed(text: bytes) -> ExportBody:
    try:
        return ExportBody.model_validate_json(text)
    except ValidationError as error:
        parts = [{**part, "loc": ("body", *part["loc"])} for part in error.errors()]
        raise RequestValidationError(parts) from error


def _record(exported: ExportedRecord, device_class_key: str, now: float) -> Record:
    return Record(
        workload_hash=exported.workload,
        device_class=device_class_key,
        trace=exported.trace,
        program=None,
        latency_s=statistics.median(exported.run_secs),
        run_secs=tuple(exported.run_secs),
        outcome=Outcome.OK,
        target=exported.target,
        source="import",
        created_at=now,
    )
