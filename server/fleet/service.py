"""The gRPC service for workers: `proto/fleet.proto` is its specification."""

from __future__ import annotations

import asyncio
import io
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import IO, Any

import grpc
import grpc.aio
from sqlalchemy.orm import Session

from core.lease import Lease
from core.worker import Role, Wanted, WorkerState
from proto import fleet_pb2 as pb
from proto.convert import (
    ProtocolMismatchError,
    WireError,
    answer_to_wire,
    library_from_wire,
    report_from_wire,
)
from proto.fleet_pb2_grpc import FleetServicer
from proto.messages import Answer, LibraryUpload, WorkerReport
from records.fleet import building, devices
from records.jobs import tasks
from records.jobs.tasks import WorkloadNotFound
from records.storage.blobs import BlobNotFound
from records.storage.database import StorageError
from server.api.jobs import pieces, spool
from server.context import ServerContext
from server.fleet import reconcile
from server.fleet.library import rejection_reason
from server.fleet.sessions import RegisteredSession, SessionCache
from server.fleet.work_poller import AvailableWork, WorkPoller

_log = logging.getLogger(__name__)

# gRPC sends the words of a status as a header, of which a client takes a few kilobytes.
_MAX_WORDS = 300


class NotEligible(Exception):
    """The session that waits may have no work any more; the answer to its next call says why."""


class FleetService(FleetServicer):
    """Answers workers. Every use of the database is a short transaction in a thread."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._watch = WorkPoller(context.database, context.stopping, context.now)
        self._sessions = SessionCache()

    async def Synchronize(  # noqa: N802
        self, request: pb.SynchronizeRequest, context: Any
    ) -> pb.SynchronizeResponse:
        self._context.metrics.synchronizations.inc()
        async with _statuses(context):
            answer = await self._answer(report_from_wire(request))
        self._context.metrics.leases.inc(answer.lease is not None)
        return answer_to_wire(answer)

    async def GetWorkload(self, request: pb.WorkloadRequest, context: Any) -> pb.Workload:  # noqa: N802
        async with _statuses(context):
            module_json = await asyncio.to_thread(self._workload, request.workload_hash)
        return pb.Workload(workload_hash=request.workload_hash, module_json=module_json)

    async def GetBlob(  # noqa: N802
        self, request: pb.BlobRequest, context: Any
    ) -> AsyncIterator[pb.Chunk]:
        async with _statuses(context):
            file = await asyncio.to_thread(self._spooled, request.sha256)
        for data in pieces(file):
            yield pb.Chunk(data=data)

    async def PutLibrary(self, request: pb.Library, context: Any) -> pb.LibraryStored:  # noqa: N802
        async with _statuses(context):
            refused = await asyncio.to_thread(self._keep, request)
        return pb.LibraryStored(refused=refused)

    async def _answer(self, report: WorkerReport) -> Answer:
        """Reconciles, then waits for work as long as the worker agreed to."""
        known = _known(report)
        announced = self._sessions.get(report.worker_id) == known
        answer = await asyncio.to_thread(self._reconcile, report, announced)
        if not answer.fenced:
            self._sessions.put(report.worker_id, known, asyncio.get_running_loop().time())
        busy = answer.fenced or answer.keeps or answer.lease or answer.acknowledged or answer.calibrate
        if not busy and answer.wanted is Wanted.WORK and reconcile.wants_work(report):
            answer = await self._wait_for_work(report, answer)
        holds = answer.lease is not None or answer.keeps is not None
        return replace(answer, call_again_after_s=self._sessions.busy_s) if holds else answer

    def _reconcile(self, report: WorkerReport, announced: bool) -> Answer:
        with self._context.database.begin() as session:
            terms = self._context.new_id(), self._context.now(), self._sessions.ttl_s
            outcome = reconcile.reconcile(session, report, announced, *terms)
        for step, job_id in outcome.wakes:
            self._context.wake(step, job_id)
        self._context.metrics.results.inc(len(outcome.answer.acknowledged))
        return outcome.answer

    async def _wait_for_work(self, report: WorkerReport, idle: Answer) -> Answer:
        """Not for longer than the worker asked for, and not while the server stops."""
        loop = asyncio.get_running_loop()
        until = loop.time() + report.wait_s
        while loop.time() < until:
            look = await self._watch.next()
            if self._context.stopping.is_set():
                return replace(idle, call_again_after_s=reconcile.IDLE_S)
            if self._is_replaced(report):
                return Answer(fenced=True)
            if report.worker_id in look.unwanted:
                break
            try:
                lease = await self._look_for_work(look, report)
            except NotEligible:
                break
            if lease is not None:
                return replace(idle, lease=lease)
        return idle

    async def _look_for_work(self, look: AvailableWork, report: WorkerReport) -> Lease | None:
        """Raises NotWanted."""
        assert report.device is not None, "a ready worker has a device"
        take = partial(self._take, report)
        if report.role is Role.BUILD:
            return await self._watch.take_to_build(look, take)
        return await self._watch.take(look, report.device.key, take)

    def _is_replaced(self, report: WorkerReport) -> bool:
        known = self._sessions.get(report.worker_id)
        return known is not None and known.session_id != report.session_id

    def _take(self, report: WorkerReport) -> Lease | None:
        """Raises NotWanted."""
        with self._context.database.begin() as session:
            if not devices.may_take(session, report.worker_id, report.session_id):
                raise NotEligible
            terms = self._context.new_id(), self._context.now(), self._sessions.ttl_s
            return reconcile.take(session, report, *terms)

    def _workload(self, workload_hash: str) -> str:
        with self._context.database.begin() as session:
            return tasks.workload(session, workload_hash)

    def _spooled(self, sha: str) -> IO[bytes]:
        with self._context.database.begin() as session:
            library = building.library(session, sha)
            return spool(session, sha) if library is None else io.BytesIO(library)

    def _keep(self, request: pb.Library) -> str:
        """Why a library is not stored; empty when it is."""
        try:
            library = library_from_wire(request)
        except WireError as error:
            return _words(error)
        with self._context.database.begin() as session:
            return _stored(session, library, self._context.now())


@asynccontextmanager
async def _statuses(context: Any) -> AsyncIterator[None]:
    """Ends the call with the status that an error means to the worker."""
    try:
        yield
    except ProtocolMismatchError as error:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, _words(error))
    except WireError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _words(error))
    except (WorkloadNotFound, BlobNotFound) as error:
        await context.abort(grpc.StatusCode.NOT_FOUND, _words(error))
    except (StorageError, OSError) as error:
        _log.error("storage: %s", error)
        cause = f"the service can't use its storage: {_words(error)}"
        await context.abort(grpc.StatusCode.UNAVAILABLE, cause)


def _stored(session: Session, library: LibraryUpload, now: float) -> str:
    machine = building.machine(session, library.lease.id, library.session_id, now)
    if machine is None:
        return "the lease is over"
    refused = rejection_reason(library.data, machine)
    if refused:
        return refused
    kept = building.put_library(session, library.lease.id, library.trial_id, library.sha, library.data)
    return "" if kept else "the lease doesn't hold its trial"


def _words(error: Exception) -> str:
    """What a worker sent may stand in them, however long it is."""
    return str(error)[:_MAX_WORDS]


def _known(report: WorkerReport) -> RegisteredSession:
    device_class = None if report.device is None else report.device.key
    return RegisteredSession(
        report.session_id, device_class, report.state is WorkerState.DRAINING, report.builds_for
    )
