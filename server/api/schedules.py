"""`/v1/schedules`: the best schedules known, and export and import of all schedules of a device class."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from cachetools import LRUCache
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, FailFast, Field
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from core.device import Device
from core.measurement import Outcome, noise
from core.target import MAX_TARGET_CHARS
from records import devices
from records.jobs import jobs, tasks
from records.schedules import imports, schedules
from records.schedules.schedules import Record
from records.storage.database import StorageError
from server.api import import_body
from server.api.fields import Name, RequestBody, WorkloadHash
from server.api.targets import NATIVE, device_class, device_class_of
from server.api.uploads import Upload, received
from server.conditional import NOT_MODIFIED, TaggedJson, is_current
from server.context import ContextDep, ServerContext
from server.fleet.plausibility import MAX_PLAUSIBLE_S, MIN_PLAUSIBLE_S
from server.look_ups import ClassFacts, LookUps
from server.problems import Problem, problems

router = APIRouter(prefix="/v1/schedules", tags=["schedules"])

_BEST_PATH = f"{router.prefix}/best"
# Each kept response takes 8 kB, with its record.
_CACHED_ANSWERS = 2000
# For this many seconds, a 304 may miss newly stored schedules.
MAX_ETAG_AGE_S = 1.0
_EXPORT_BATCH = 20
# The rows of one transaction. There are few, so that its locks are short.
_DELETE_BATCH = 1000
_IMPORT_BATCH = 200
_EXPORT_ANSWER = {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/ExportBody"}}}}
_NEAREST = "if the target has no schedule, take one of the nearest device class whose code runs there"
_IMPORT_BODY = {"requestBody": {"required": True, **_EXPORT_ANSWER}}


RunSeconds = Annotated[float, Field(ge=MIN_PLAUSIBLE_S, le=MAX_PLAUSIBLE_S, allow_inf_nan=False)]


class ScheduleBody(BaseModel):
    """A workload's best known schedule on a device class: a TVM trace to replay on the workload.

    `latency_s` and `run_s` are seconds. `noise` is the spread of `run_s` as a fraction of their median, null
    for a single repeat. `created_at` is in epoch seconds. `toolchain` has the versions of the compilers, and
    `threads` the number of threads of the timed program (null for a GPU). If `source` is "trial", a device of
    the class has compared the schedule's outputs and timed it. If it is "import", none has: the seconds are
    from the imported database, and outputs may be wrong. If the requested class has no schedule,
    `in_place_of` names it, and the schedule is of the nearest class whose code runs there. `registers` and
    `spilled_bytes` of a thread are what the compiler reported of a GPU's kernels; null if it reported
    nothing.
    """

    workload: str
    device_class: str
    in_place_of: str | None
    trace: str
    target: str
    latency_s: float
    noise: float | None
    run_s: list[float]
    toolchain: str
    threads: int | None
    source: Literal["trial", "import"]
    created_at: float
    registers: int | None
    spilled_bytes: int | None

    @classmethod
    def of(cls, record: Record, of_class: ClassFacts, asked: str) -> ScheduleBody:
        assert record.latency_s is not None, "only successful records are schedules"
        return cls(
            workload=record.workload_hash,
            device_class=record.device_class,
            in_place_of=None if record.device_class == asked else asked,
            trace=record.trace,
            target=record.target,
            latency_s=record.latency_s,
            noise=noise(record.run_s),
            run_s=list(record.run_s),
            toolchain=of_class.toolchain,
            threads=of_class.threads,
            source=record.source,
            created_at=record.created_at,
            registers=record.registers,
            spilled_bytes=record.spilled_bytes,
        )


class ScheduleQueryBody(RequestBody):
    target: Name = NATIVE
    workloads: Annotated[list[WorkloadHash], FailFast()] = Field(max_length=10_000)
    nearest: bool = False


class SchedulesBody(BaseModel):
    """Schedules by workload; null for a workload without one."""

    device_class: str
    schedules: dict[str, ScheduleBody | None]


class ExportedWorkloadBody(RequestBody):
    """A workload; `module_json` is its TVM module."""

    hash: WorkloadHash
    module_json: str = Field(min_length=2)


class ExportedRecordBody(RequestBody):
    """`trace` and `target` are JSON, as in MetaSchedule's files; `run_s` are seconds."""

    workload: WorkloadHash
    trace: str = Field(min_length=2, max_length=import_body.MAX_TRACE_CHARS)
    run_s: list[RunSeconds] = Field(min_length=1, max_length=import_body.MAX_REPEATS)
    target: str = Field(min_length=2, max_length=MAX_TARGET_CHARS)


class ExportBody(RequestBody):
    """The records that export returns and import takes. Every record's workload is among the workloads.

    An import takes at most 10,000 workloads and as many records, in 16 MiB; send more in several requests.
    """

    workloads: list[ExportedWorkloadBody]
    records: list[ExportedRecordBody]


class ImportedBody(BaseModel):
    """The number of `records` that were sent to a device class, and of those that were `added`."""

    device_class: str
    records: int
    added: int


class ImportsDeletedBody(BaseModel):
    """The number of imported records of a device class that were `deleted`."""

    device_class: str
    deleted: int


class FoundScheduleBody(BaseModel):
    """The latency of a workload's fastest measured schedule. `name` and `signature` are those of a task with
    the workload."""

    workload: str
    name: str
    signature: str
    flops: float
    latency_s: float
    noise: float | None
    created_at: float


class FoundSchedulesBody(BaseModel):
    device_class: str
    items: list[FoundScheduleBody]


@router.get("")
def search(
    context: ContextDep,
    target: Annotated[Name, Query()] = NATIVE,
    words: Annotated[
        str,
        Query(
            max_length=256, description="words that a name or signature must contain, such as conv2d 56,56"
        ),
    ] = "",
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> FoundSchedulesBody:
    """Return the measured workloads with these words in their operators or shapes, the newest first."""
    with context.database.reading() as session:
        key = device_class(session, target, context.now())
        found = tasks.search(session, key, words.split(), limit)
        best = schedules.best_many(session, [workload.hash for workload in found], key)
    items = []
    for workload in found:
        record = best[workload.hash]
        assert record.latency_s is not None, "only successful records are schedules"
        items.append(
            FoundScheduleBody(
                workload=workload.hash,
                name=workload.name,
                signature=workload.signature,
                flops=workload.flops,
                latency_s=record.latency_s,
                noise=noise(record.run_s),
                created_at=record.created_at,
            )
        )
    return FoundSchedulesBody(device_class=key, items=items)


@router.get("/best", response_model=ScheduleBody, responses={**NOT_MODIFIED, **problems(404)})
async def best(
    request: Request,
    context: ContextDep,
    workload: Annotated[WorkloadHash, Query()],
    target: Annotated[Name, Query()] = NATIVE,
    nearest: Annotated[bool, Query(description=_NEAREST)] = False,
) -> Response:
    """Return the fastest schedule measured of one workload; without one, an imported schedule.

    A request with the ETag in If-None-Match gets 304 if that response is current, or was current a second
    ago.
    """
    key = await device_class_of(context, target)
    record = await context.look_ups.best(workload, key)
    if record is None and nearest:
        record = (await context.look_ups.best_nearest([workload], key)).get(workload)
    if record is None:
        asked = await context.look_ups.facts(key)
        detail = f"No schedule is known of workload {workload} on {asked.title}: tune a model that has it."
        raise Problem(404, "no-schedule", detail)
    of_class = await context.look_ups.facts(record.device_class)
    return TaggedJson.of(ScheduleBody.of(record, of_class, key)).to(request)


_BEST_ROUTE = Route(_BEST_PATH, best)


@dataclass(frozen=True)
class _CachedAnswer:
    """A response, its record, and the time of its query by the monotonic clock."""

    record: Record
    answer: TaggedJson
    asked_at: float


class RoutineLookUps:
    """ASGI middleware that answers routine look-ups without FastAPI, whose routing takes longer than that.

    A look-up is routine if the workload has a schedule, and the device class is given by its key and was
    requested before. Other look-ups go to `best`, which returns the same responses. A client whose ETag was
    current less than MAX_ETAG_AGE_S seconds ago gets 304 without a query. Every other request makes a query.
    """

    def __init__(self, app: ASGIApp, look_ups: LookUps) -> None:
        self._app = app
        self._look_ups = look_ups
        # Responses by the query string of their URL, because parsing that takes longer than finding it here.
        self._kept: LRUCache[bytes, _CachedAnswer] = LRUCache(_CACHED_ANSWERS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = None
        if scope["type"] == "http" and scope["path"] == _BEST_PATH and scope["method"] == "GET":
            with contextlib.suppress(StorageError):
                answer = await self._answer(Request(scope))
        await (answer or self._app)(scope, receive, send)

    async def _answer(self, request: Request) -> Response | None:
        query = request.scope["query_string"]
        kept = self._kept.get(query)
        if kept is None:
            asked = request.query_params
            workload, key = asked.get("workload", ""), asked.get("target", "")
            if len(asked) != 2 or not self._look_ups.known(key):
                return None
        else:
            workload, key = kept.record.workload_hash, kept.record.device_class
            if time.monotonic() - kept.asked_at < MAX_ETAG_AGE_S and is_current(request, kept.answer.etag):
                request.scope["route"] = _BEST_ROUTE  # for the metrics
                return kept.answer.to(request)
        asked_at = time.monotonic()
        record = await self._look_ups.best(workload, key)
        if record is None:
            return None
        request.scope["route"] = _BEST_ROUTE
        if kept is not None and kept.record == record:
            answer = kept.answer  # serializing and digesting it again would take longer
        else:
            answer = TaggedJson.of(ScheduleBody.of(record, await self._look_ups.facts(key), key))
        self._kept[query] = _CachedAnswer(record, answer, asked_at)
        return answer.to(request)


@router.post(":query", response_model=SchedulesBody, responses={**NOT_MODIFIED, **problems(400)})
async def query(request: Request, body: ScheduleQueryBody, context: ContextDep) -> Response:
    """Return the fastest schedules measured of many workloads at once; without one, imported schedules.

    `nearest` and If-None-Match work as for one workload.
    """
    key = await device_class_of(context, body.target)
    found = await context.look_ups.best_many(body.workloads, key)
    if body.nearest and len(found) < len(set(body.workloads)):
        missing = [name for name in body.workloads if name not in found]
        found |= await context.look_ups.best_nearest(missing, key)
    by_hash: dict[str, ScheduleBody | None] = dict.fromkeys(body.workloads)
    for name, record in found.items():
        of_class = await context.look_ups.facts(record.device_class)
        by_hash[name] = ScheduleBody.of(record, of_class, key)
    return TaggedJson.of(SchedulesBody(device_class=key, schedules=by_hash)).to(request)


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

    Imported schedules are left out until a device of the class has measured them. The response is streamed;
    one that ends early is not valid JSON.
    """
    if job is not None and target is not None:
        raise Problem(422, "job-or-target", "Give a job or a target, not both: a job has its own target.")
    with context.database.begin() as session:
        if job is None:
            records = schedules.successes(session, device_class(session, target or NATIVE, context.now()))
        else:
            found = jobs.get(session, jobs.full_id(session, job))
            key = found.device_class
            if key is None:
                detail = f"Job {found.id} has no device yet: wait until it has started."
                raise Problem(409, "job-not-started", detail)
            hashes = [task.workload_hash for task in tasks.for_job(session, found.id)]
            records = schedules.successes(session, key, hashes)
    return StreamingResponse(_export(context, records), media_type="application/json")


@router.post("/import", openapi_extra=_IMPORT_BODY, responses=problems(400, 408))
async def import_(
    request: Request, context: ContextDep, target: Annotated[Name, Query()] = NATIVE
) -> ImportedBody:
    """Add the schedules of another database to a device class. Known schedules stay as they are.

    Jobs measure them before anything else. Until then, their times have no effect. The body has the form that
    export returns. The whole body is checked before any part is stored. Sending it again stores missing
    parts.
    """
    async with received(request, context.transfers) as upload, context.importing:
        imported, device = await context.transfers.run(_import, context, upload, target)
    request.state.audited = device.title
    return imported


@router.delete("/imported")
def delete_imported(
    request: Request,
    context: ContextDep,
    target: Annotated[Name, Query()] = NATIVE,
    workload: Annotated[WorkloadHash | None, Query(description="only the schedules of this workload")] = None,
) -> ImportsDeletedBody:
    """Delete the imported schedules of a device class that were never measured there."""
    with context.database.begin() as session:
        key = device_class(session, target, context.now())
        device = devices.get_class(session, key)
        workload = workload and tasks.full_hash(session, workload)
    request.state.audited = device.title
    deleted, last_id, is_done = 0, 0, False
    while not is_done:
        with context.database.begin() as session:
            ids = imports.drop(session, key, workload, last_id, _DELETE_BATCH)
        deleted += len(ids)
        last_id, is_done = max(ids, default=0), len(ids) < _DELETE_BATCH
    return ImportsDeletedBody(device_class=key, deleted=deleted)


def _export(context: ServerContext, records: list[Record]) -> Iterator[str]:
    """Yield an ExportBody as JSON, with few workloads in memory at once."""
    hashes = list(dict.fromkeys(record.workload_hash for record in records))
    separator = ""
    yield '{"workloads":['
    for start in range(0, len(hashes), _EXPORT_BATCH):
        with context.database.begin() as session:
            found = tasks.workloads(session, hashes[start : start + _EXPORT_BATCH])
        for name, module_json in found.items():
            yield separator + ExportedWorkloadBody(hash=name, module_json=module_json).model_dump_json()
            separator = ",\n"
    separator = ""
    yield '],"records":['
    for record in records:
        exported = ExportedRecordBody(
            workload=record.workload_hash,
            trace=record.trace,
            run_s=list(record.run_s),
            target=record.target,
        )
        yield separator + exported.model_dump_json()
        separator = ",\n"
    yield "]}"


def _import(context: ServerContext, upload: Upload, target: str) -> tuple[ImportedBody, Device]:
    upload.file.seek(0)
    body = import_body.decode(upload.file.read())
    now = context.now()
    with context.database.begin() as session:
        key = device_class(session, target, now)
        device = devices.get_class(session, key)
    # Each schedule once, even if the body repeats it.
    wanted = {(one.workload, one.trace): one for one in body.records}
    records = [
        Record(
            workload_hash=one.workload,
            device_class=key,
            trace=one.trace,
            program=None,
            latency_s=statistics.median(one.run_s),
            run_s=tuple(one.run_s),
            outcome=Outcome.OK,
            target=one.target,
            source="import",
            created_at=now,
        )
        for one in wanted.values()
    ]
    for start in range(0, len(body.workloads), _IMPORT_BATCH):
        with context.database.begin() as session:
            for workload in body.workloads[start : start + _IMPORT_BATCH]:
                tasks.put_workload(session, workload.hash, workload.module_json)
    added = 0
    for start in range(0, len(records), _IMPORT_BATCH):
        with context.database.begin() as session:
            added += imports.add(session, records[start : start + _IMPORT_BATCH], now)
    return ImportedBody(device_class=key, records=len(body.records), added=added), device
