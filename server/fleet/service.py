"""The gRPC service for workers: `proto/fleet.proto` is its specification."""

from __future__ import annotations

import asyncio
import io
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
import grpc.aio
from sqlalchemy.orm import Session

from core.lease import Lease
from core.worker import MAX_HEALTH_ERROR_CHARS, DesiredState, Role, WorkerState
from proto import fleet_pb2 as pb
from proto.convert import (
    ProtocolMismatchError,
    WireError,
    library_from_wire,
    outputs_from_wire,
    report_from_wire,
    response_to_wire,
)
from proto.fleet_pb2_grpc import FleetServicer
from proto.messages import SyncResponse, WorkerReport
from records.fleet import building, module_runs, workers
from records.fleet.hardware import HardwareInUse
from records.fleet.names import NameInUse, NameTaken
from records.jobs import inferences, tasks
from records.jobs.tasks import WorkloadNotFound
from records.storage import blobs
from records.storage.blobs import BlobNotFound
from records.storage.database import StorageError
from server.access.interceptor import current_caller
from server.blob_stream import PIECE_BYTES, stream_blob
from server.context import ServerContext
from server.fleet import reconcile
from server.fleet.reconcile import WorkerCall
from server.fleet.sessions import RegisteredSession, SessionCache
from server.fleet.uploaded_library import rejection_reason
from server.fleet.work_poller import AvailableWork, WorkPoller
from system import logs

_log = logging.getLogger(__name__)

# The most characters of a status's details. gRPC sends them in a header, and clients accept a few kilobytes
# of headers.
_MAX_DETAILS_CHARS = 300


class NotEligible(Exception):
    """The waiting session may take no more work. The response to its next call says why."""


class FleetService(FleetServicer):
    """The gRPC service for workers. Every use of the database is a short transaction in a thread.

    Synchronize and transfers of files use separate threads.
    """

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._poller = WorkPoller(context.database, context.stopping, context.now)
        self._sessions = SessionCache()

    async def Synchronize(  # noqa: N802
        self, request: pb.SynchronizeRequest, context: Any
    ) -> pb.SynchronizeResponse:
        self._context.metrics.synchronizations.inc()
        async with _abort_on_error(context):
            report = self._held_back(report_from_wire(request))
            with logs.about(worker=report.worker_id, lease=report.held.id if report.held else None):
                response = await self._answer(report)
        self._context.metrics.leases.inc(response.lease is not None)
        return response_to_wire(response)

    async def GetWorkload(self, request: pb.WorkloadRequest, context: Any) -> pb.Workload:  # noqa: N802
        async with _abort_on_error(context):
            module_json = await self._context.transfers.run(self._workload, request.workload_hash)
        return pb.Workload(workload_hash=request.workload_hash, module_json=module_json)

    async def GetBlob(  # noqa: N802
        self, request: pb.BlobRequest, context: Any
    ) -> AsyncIterator[pb.Chunk]:
        database, transfers = self._context.database, self._context.transfers
        async with _abort_on_error(context):
            library, size = await transfers.run(self._find_blob, request.sha256)
            for start in range(0, len(library), PIECE_BYTES):
                yield pb.Chunk(data=library[start : start + PIECE_BYTES])
            async for data in stream_blob(database, transfers, request.sha256, size):
                yield pb.Chunk(data=data)

    async def PutLibrary(self, request: pb.Library, context: Any) -> pb.LibraryStored:  # noqa: N802
        async with _abort_on_error(context):
            token_id = current_caller.get().token_id
            reason = await self._context.transfers.run(self._store_library, request, token_id)
        return pb.LibraryStored(refused=reason)

    async def PutOutputs(self, request: pb.Outputs, context: Any) -> pb.OutputsStored:  # noqa: N802
        async with _abort_on_error(context):
            token_id = current_caller.get().token_id
            reason = await self._context.transfers.run(self._store_outputs, request, token_id)
        return pb.OutputsStored(refused=reason)

    def _held_back(self, report: WorkerReport) -> WorkerReport:
        """Return the report. If the service requires a sandbox and the worker's has gaps, mark the worker as
        unable to work.

        A worker that holds a lease may finish it.
        """
        gaps = report.vitals.sandbox_gaps
        if not (self._context.settings.require_sandbox and gaps) or report.held is not None:
            return report
        health_error = f"this service requires a sandbox without gaps (TUNEFARM_REQUIRE_SANDBOX), but {gaps}"
        vitals = replace(report.vitals, health_error=health_error[:MAX_HEALTH_ERROR_CHARS])
        state = WorkerState.PROBING if report.state is WorkerState.READY else report.state
        return replace(report, state=state, device=None, slots=0, wait_s=0.0, vitals=vitals)

    async def _answer(self, report: WorkerReport) -> SyncResponse:
        """Reconcile a report, then wait for work for at most the time that the worker allows."""
        worker_id, device = report.worker_id, report.device
        session = RegisteredSession(
            report.session_id,
            None if device is None else device.key,
            report.state is WorkerState.DRAINING,
            report.builds_for,
        )
        registered = self._sessions.get(worker_id) == session
        lease_ttl_s = self._sessions.lease_ttl_s
        token_id = current_caller.get().token_id
        called_s = time.monotonic()
        response = await asyncio.to_thread(self._reconcile, report, token_id, registered, lease_ttl_s)
        self._sessions.note_call(time.monotonic() - called_s)
        if not response.fenced:
            self._sessions.put(worker_id, session)
        is_idle = not (response.fenced or response.keeps or response.lease)
        has_news = (
            response.acknowledged or response.calibrate or response.desired_state is not DesiredState.WORK
        )
        if is_idle and not has_news and reconcile.wants_work(report):
            response = await self._wait_for_work(report, response)
        if response.lease is not None or response.keeps is not None:
            return replace(response, call_again_after_s=self._sessions.call_interval_s)
        return response

    def _reconcile(
        self, report: WorkerReport, token_id: str | None, registered: bool, lease_ttl_s: float
    ) -> SyncResponse:
        with self._context.database.begin() as session:
            call = self._call(report, token_id, registered, lease_ttl_s)
            result = reconcile.reconcile(session, call, self._context.version)
        for step, job_id in result.wakes:
            self._context.wake(step, job_id)
        self._context.metrics.results.inc(len(result.response.acknowledged))
        response = result.response
        if result.may_lease and reconcile.wants_work(report):
            with suppress(HardwareInUse, NotEligible):
                response = replace(response, lease=self._acquire_lease(report, lease_ttl_s))
        return response

    async def _wait_for_work(self, report: WorkerReport, idle: SyncResponse) -> SyncResponse:
        """Return a response with a lease as soon as there is work.

        Return `idle` after the time that the worker allows, or if it may take no more work. Return at once if
        the server stops.
        """
        loop = asyncio.get_running_loop()
        until = loop.time() + report.wait_s
        device_class = None if report.role is Role.BUILD or report.device is None else report.device.key

        def concerns(work: AvailableWork) -> bool:
            has_work = work.builds if device_class is None else device_class in work.classes
            return has_work or report.worker_id in work.unwanted or self._is_replaced(report)

        while (left_s := until - loop.time()) > 0:
            work = await self._poller.next_work(concerns, left_s)
            if work is None:
                break
            if self._context.stopping.is_set():
                return replace(idle, call_again_after_s=reconcile.IDLE_S)
            if self._is_replaced(report):
                return SyncResponse(fenced=True)
            if report.worker_id in work.unwanted:
                break
            try:
                lease = await self._lease_if_available(work, report)
            except HardwareInUse:
                continue
            except NotEligible:
                break
            if lease is not None:
                return replace(idle, lease=lease)
        return idle

    def _is_replaced(self, report: WorkerReport) -> bool:
        """Return whether another session of the report's worker has called this server since."""
        session = self._sessions.get(report.worker_id)
        return session is not None and session.session_id != report.session_id

    async def _lease_if_available(self, work: AvailableWork, report: WorkerReport) -> Lease | None:
        """Return a lease for the worker if the poll found work for it. Raises NotEligible, HardwareInUse."""
        assert report.device is not None, "a ready worker has a device"
        acquire = partial(self._acquire_lease, report, self._sessions.lease_ttl_s)
        if report.role is Role.BUILD:
            return await self._poller.lease_for_builder(work, acquire)
        return await self._poller.lease_for_device(work, report.worker_id, report.device.key, acquire)

    def _acquire_lease(self, report: WorkerReport, lease_ttl_s: float) -> Lease | None:
        """Acquire a lease for the worker; None if there is no work for it. Raises NotEligible,
        HardwareInUse."""
        with self._context.database.begin() as session:
            if not workers.may_lease(session, report.worker_id, report.session_id):
                raise NotEligible
            return reconcile.new_lease(session, self._call(report, None, True, lease_ttl_s))

    def _call(
        self, report: WorkerReport, token_id: str | None, registered: bool, lease_ttl_s: float
    ) -> WorkerCall:
        """Return a worker's call at the present time, with an id for a new lease."""
        lease_id, now = self._context.new_id(), self._context.now()
        return WorkerCall(report, token_id, registered, lease_id, now, lease_ttl_s)

    def _workload(self, workload_hash: str) -> str:
        with self._context.database.begin() as session:
            return tasks.workload(session, workload_hash)

    def _find_blob(self, sha: str) -> tuple[bytes, int]:
        """Return a built library, or the size of a stored blob. Raises BlobNotFound."""
        with self._context.database.begin() as session:
            library, size = building.library(session, sha), blobs.size(session, sha)
        if library is None and size is None:
            raise BlobNotFound(f"there is no blob {sha!r}")
        return (library, 0) if library is not None else (b"", size or 0)

    def _store_library(self, request: pb.Library, token_id: str | None) -> str:
        """Store a library that a builder sends. Return the reason if it is rejected, else ""."""
        try:
            library = library_from_wire(request)
        except WireError as error:
            return _details(error)
        lease_id = library.lease.id

        def platform_of(session: Session) -> str | None:
            return building.leased_platform(
                session, lease_id, library.session_id, self._context.now(), token_id
            )

        with self._context.database.reading() as session:
            platform = platform_of(session)
        if platform is None:
            return "the lease is over"
        reason = rejection_reason(library.data, platform)
        if reason:
            return reason
        with self._context.database.begin() as session:
            if platform_of(session) is None:
                return "the lease is over"
            if building.put_library(session, lease_id, library.trial_id, library.sha, library.data):
                return ""
            return "the lease doesn't hold its trial"

    def _store_outputs(self, request: pb.Outputs, token_id: str | None) -> str:
        """Store the outputs of an inference. Return the reason if they are rejected, else ""."""
        try:
            outputs = outputs_from_wire(request)
        except WireError as error:
            return _details(error)
        held = (outputs.lease.id, outputs.session_id, outputs.module_run_id)
        with self._context.database.reading() as session:
            if module_runs.leased_job(session, *held, self._context.now(), token_id) is None:
                return "the lease is over"
        file = io.BytesIO(outputs.data)
        blobs.upload(self._context.database, file, outputs.sha, len(outputs.data))
        with self._context.database.begin() as session:
            job_id = module_runs.leased_job(session, *held, self._context.now(), token_id)
            if job_id is None:
                return "the lease is over"
            blobs.put_file(session, file, outputs.sha, len(outputs.data))
            inferences.set_outputs(session, job_id, outputs.sha)
        return ""


@asynccontextmanager
async def _abort_on_error(context: Any) -> AsyncIterator[None]:
    """If an error is raised, end the call with the gRPC status for it."""
    try:
        yield
    except ProtocolMismatchError as error:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, _details(error))
    except WireError as error:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, _details(error))
    except (WorkloadNotFound, BlobNotFound) as error:
        await context.abort(grpc.StatusCode.NOT_FOUND, _details(error))
    except NameTaken as error:
        await context.abort(grpc.StatusCode.ALREADY_EXISTS, _details(error))
    except NameInUse as error:
        await context.abort(grpc.StatusCode.ABORTED, _details(error))
    except (StorageError, OSError) as error:
        _log.error("storage: %s", error)
        details = f"the service can't use its storage: {_details(error)}"
        await context.abort(grpc.StatusCode.UNAVAILABLE, details)


def _details(error: Exception) -> str:
    """Return the error's message, cut, because it may contain a worker's text of any length."""
    return str(error)[:_MAX_DETAILS_CHARS]
