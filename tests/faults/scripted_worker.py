"""A worker whose calls a scenario makes singly, to report twice, too late, or with impossible times."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from core.lease import Lease, LeaseId
from core.measurement import Measurement, Outcome
from core.worker import WorkerState
from proto import convert
from proto import fleet_pb2 as pb
from proto.fleet_pb2_grpc import FleetStub
from proto.messages import Result, SyncResponse, WorkerReport
from tests.faults.job_run import JobRun
from tests.faults.rig import POLL_S


@dataclass
class ScriptedWorker:
    """Reports `run_s` for every candidate, even if the times are impossible."""

    run: JobRun
    stub: FleetStub
    name: str = "scripted"
    session: str = field(default_factory=lambda: uuid.uuid4().hex)
    run_s: Sequence[float] = (0.001, 0.001, 0.001)
    starting: bool = True
    numbers: int = 0

    def lease(self) -> Lease:
        """Call until the server answers with a lease."""
        found: list[Lease] = []

        def ask() -> bool:
            response = self.call(WorkerState.READY)
            found.extend([response.lease] if response.lease is not None else [])
            return bool(found)

        self.run.until(ask, "the scripted worker got no lease")
        return found[0]

    def lease_of_trials(self) -> Lease:
        """Return the next lease of trials; report those of whole models that come before it."""
        while (lease := self.lease()).module_runs:
            self.report(lease)
        return lease

    def report(self, lease: Lease) -> SyncResponse:
        return self.call(WorkerState.BUSY, lease.id, self.measure(lease))

    def measure(self, lease: Lease) -> list[Result]:
        """Return a result for each module run or candidate in the lease."""
        good = Measurement(Outcome.OK, (0.001, 0.001, 0.001))
        if lease.module_runs:
            return [Result(self._number(), lease.id, good, module_run_id=run.id) for run in lease.module_runs]
        return [Result(self._number(), lease.id, good, trial_id=one.trial_id) for one in lease.candidates]

    def call(
        self, state: WorkerState, held: LeaseId | None = None, results: Sequence[Result] = ()
    ) -> SyncResponse:
        report = WorkerReport(
            worker_id=f"{self.run.name}-{self.name}",
            session_id=self.session,
            starting=self.starting,
            state=state,
            device=self.run.faults.device,
            held=held,
            results=tuple(results),
            slots=8 if state is WorkerState.READY else 0,
        )
        wire = convert.report_to_wire(report)
        for result in wire.results:
            if result.HasField("trial_id"):
                result.measurement.run_s[:] = self.run_s
        response: pb.SynchronizeResponse = self.stub.Synchronize(
            wire, timeout=20, metadata=(("authorization", f"Bearer {self.run.rig.token}"),)
        )
        self.starting = False
        return convert.response_from_wire(response, held)

    def work_on(self) -> None:
        """Lease and report until the job has finished."""
        while not self.run.job().state.finished:
            response = self.call(WorkerState.READY)
            if response.lease is not None:
                self.report(response.lease)
            time.sleep(POLL_S)

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers


def connected(run: JobRun) -> tuple[grpc.Channel, FleetStub]:
    channel = grpc.insecure_channel(run.rig.fleet("scripted"))
    return channel, FleetStub(channel)
