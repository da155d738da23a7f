"""A worker's side of the protocol by hand: it may repeat itself, come late, or report nonsense."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import grpc

from benchmarks.faults.rig import POLL_S
from benchmarks.faults.stage import Stage
from core.lease import Lease, LeaseId
from core.measurement import Measurement, Outcome
from core.worker import WorkerState
from proto import convert
from proto import fleet_pb2 as pb
from proto.fleet_pb2_grpc import FleetStub
from proto.messages import Answer, Result, WorkerReport


@dataclass
class Hand:
    """`run_secs` are reported for every candidate and module, exactly as they are, however impossible."""

    stage: Stage
    stub: FleetStub
    name: str = "hand"
    session: str = field(default_factory=lambda: uuid.uuid4().hex)
    run_secs: Sequence[float] = (0.001, 0.001, 0.001)
    starting: bool = True
    numbers: int = 0

    def lease(self) -> Lease:
        """Asks until there is one."""
        found: list[Lease] = []

        def ask() -> bool:
            answer = self.call(WorkerState.READY)
            found.extend([answer.lease] if answer.lease is not None else [])
            return bool(found)

        self.stage.until(ask, "the hand got no lease")
        return found[0]

    def lease_of_trials(self) -> Lease:
        """The next one; what comes before it is timed."""
        while (lease := self.lease()).module_runs:
            self.report(lease)
        return lease

    def report(self, lease: Lease) -> Answer:
        return self.call(WorkerState.BUSY, lease.id, self.measure(lease))

    def measure(self, lease: Lease) -> list[Result]:
        """A result of everything in the lease."""
        good = Measurement(Outcome.OK, (0.001, 0.001, 0.001))
        if lease.module_runs:
            return [Result(self._number(), lease.id, good, module_run_id=run.id) for run in lease.module_runs]
        return [Result(self._number(), lease.id, good, trial_id=one.trial_id) for one in lease.candidates]

    def call(self, state: WorkerState, held: LeaseId | None = None, results: Sequence[Result] = ()) -> Answer:
        report = WorkerReport(
            worker_id=f"{self.stage.name}-{self.name}",
            session_id=self.session,
            starting=self.starting,
            state=state,
            device=self.stage.faults.device,
            held=held,
            results=tuple(results),
            slots=8 if state is WorkerState.READY else 0,
        )
        wire = convert.report_to_wire(report)
        for result in wire.results:
            if result.HasField("trial_id"):
                result.measurement.run_secs[:] = self.run_secs
        answer: pb.SynchronizeResponse = self.stub.Synchronize(
            wire, timeout=20, metadata=(("authorization", f"Bearer {self.stage.rig.token}"),)
        )
        self.starting = False
        return convert.answer_from_wire(answer, held)

    def work_on(self) -> None:
        """Until the job has finished."""
        while not self.stage.job().state.finished:
            answer = self.call(WorkerState.READY)
            if answer.lease is not None:
                self.report(answer.lease)
            time.sleep(POLL_S)

    def _number(self) -> int:
        self.numbers += 1
        return self.numbers


def connected(stage: Stage) -> tuple[grpc.Channel, FleetStub]:
    channel = grpc.insecure_channel(stage.rig.fleet)
    return channel, FleetStub(channel)
