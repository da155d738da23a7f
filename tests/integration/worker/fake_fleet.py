"""An in-memory service: real gRPC, as fleet.proto specifies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import grpc.aio

from core.lease import Candidate, Lease, LeaseId, Limits, ModuleRun
from core.measurement import Built
from core.worker import DesiredState, WorkerState
from proto import fleet_pb2 as pb
from proto.convert import library_from_wire, report_from_wire, response_to_wire
from proto.fleet_pb2_grpc import FleetServicer, add_FleetServicer_to_server
from proto.messages import LibraryUpload, Result, SyncResponse, WorkerReport

LIMITS = Limits(build_timeout_s=60.0, run_timeout_s=60.0, module_timeout_s=60.0, memory_bytes=1 << 28)


class FakeFleet(FleetServicer):
    """Keeps every report. Its server may stop, and start again on the same port."""

    def __init__(self) -> None:
        self.reports: list[WorkerReport] = []
        self.metadata: list[dict[str, str]] = []
        self.stored: dict[int, Result] = {}
        self.leases: list[Lease] = []
        self.held: Lease | None = None
        self.workloads: dict[str, str] = {}
        self.fetched: list[str] = []
        self.blobs: dict[str, bytes] = {}
        self.libraries: list[LibraryUpload] = []
        self.refusing = ""
        self.damaged = 0
        self.fence = False
        self.desired_state = DesiredState.WORK
        self.calibrate = False
        self.again_s = 0.02
        self.acknowledging = True
        self.storing = True
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.lose_answers = 0
        self._heard = asyncio.Condition()
        self._server: grpc.aio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        self._server = grpc.aio.server()
        add_FleetServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(grace=None)

    async def until(self, heard: Callable[[], bool]) -> None:
        """Wait until `heard` is true after a report."""
        async with self._heard:
            await self._heard.wait_for(heard)

    def offer(
        self,
        *traces: str,
        workload: str = "w",
        target: str = "{}",
        limits: Limits = LIMITS,
        best_s: float | None = None,
        library_sha: str | None = None,
        build: bool = False,
    ) -> Lease:
        """Make a lease with a candidate for each trace, for the next worker that is ready."""
        first = 1 + sum(len(lease.candidates) for lease in self.leases)
        candidates = tuple(
            Candidate(first + i, workload, trace, best_s=best_s, library_sha=library_sha)
            for i, trace in enumerate(traces)
        )
        self.workloads.setdefault(workload, "")
        number = len(self.leases)
        lease = Lease(LeaseId(f"lease{number}", 1), target, limits, 30.0, candidates, build=build)
        self.leases.append(lease)
        return lease

    def offer_modules(self, *runs: ModuleRun) -> Lease:
        lease = Lease(LeaseId(f"lease{len(self.leases)}", 1), "{}", LIMITS, 30.0, module_runs=runs)
        self.leases.append(lease)
        return lease

    def outcomes(self) -> list[str]:
        """Return the outcomes of the stored results, in the order of their trials."""
        ordered = sorted(self.stored.values(), key=lambda result: result.trial_id or 0)
        ends = [result.measurement for result in ordered]
        return ["built" if isinstance(end, Built) else end.outcome.value for end in ends]

    async def Synchronize(  # noqa: N802
        self, request: pb.SynchronizeRequest, context: Any
    ) -> pb.SynchronizeResponse:
        report = report_from_wire(request)
        self.metadata.append(dict(context.invocation_metadata()))
        if self.refusal is not None:
            await context.abort(*self.refusal)
        response = self._answer(report)
        async with self._heard:
            self.reports.append(report)
            self._heard.notify_all()
        if self.lose_answers > 0:
            self.lose_answers -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the answer got lost")
        return response_to_wire(response)

    async def GetWorkload(  # noqa: N802
        self, request: pb.WorkloadRequest, context: Any
    ) -> pb.Workload:
        self.fetched.append(request.workload_hash)
        if request.workload_hash not in self.workloads:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such workload")
        return pb.Workload(
            workload_hash=request.workload_hash, module_json=self.workloads[request.workload_hash]
        )

    async def GetBlob(  # noqa: N802
        self, request: pb.BlobRequest, context: Any
    ) -> AsyncIterator[pb.Chunk]:
        self.fetched.append(request.sha256)
        data = self.blobs[request.sha256]
        if self.damaged > 0:
            self.damaged -= 1
            data = b"?" + data[1:]
        half = len(data) // 2
        yield pb.Chunk(data=data[:half])
        yield pb.Chunk(data=data[half:])

    async def PutLibrary(  # noqa: N802
        self, request: pb.Library, context: Any
    ) -> pb.LibraryStored:
        self.libraries.append(library_from_wire(request))
        return pb.LibraryStored(refused=self.refusing)

    def _answer(self, report: WorkerReport) -> SyncResponse:
        if self.fence:
            return SyncResponse(fenced=True)
        if self.desired_state is DesiredState.EVICTED:
            self.held = None
            return SyncResponse(
                fenced=True, desired_state=self.desired_state, call_again_after_s=self.again_s
            )
        self.calibrate = self.calibrate and not report.calibrated
        for result in report.results if self.storing else ():
            self.stored.setdefault(result.trial_id or result.module_run_id or 0, result)
        acknowledged = (
            tuple(result.number for result in report.results) if self.acknowledging and self.storing else ()
        )
        self._close_finished()
        if self.held is not None and self.held.id == report.held:
            return SyncResponse(
                keeps=report.held,
                acknowledged=acknowledged,
                call_again_after_s=self.again_s,
                desired_state=self.desired_state,
                calibrate=self.calibrate,
            )
        lease = None
        if report.state in (WorkerState.PROBING, WorkerState.DRAINING, WorkerState.OFFLINE):
            self.held = None
        if report.state is WorkerState.READY and self.desired_state is DesiredState.WORK:
            lease = self.held = self.held or self._next()
        return SyncResponse(
            lease=lease,
            acknowledged=acknowledged,
            call_again_after_s=self.again_s,
            desired_state=self.desired_state,
            calibrate=self.calibrate,
        )

    def _next(self) -> Lease | None:
        return next((lease for lease in self.leases if not self._finished(lease)), None)

    def _close_finished(self) -> None:
        if self.held is not None and self._finished(self.held):
            self.held = None

    def _finished(self, lease: Lease) -> bool:
        expected = {candidate.trial_id for candidate in lease.candidates} | {
            run.id for run in lease.module_runs
        }
        return expected <= {number for number, result in self.stored.items() if result.lease == lease.id}
