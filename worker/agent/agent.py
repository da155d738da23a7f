"""The agent: reports its state to the service, and works on the leases that it gets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import grpc

from core.device import Device
from core.lease import Candidate, LeaseId, Limits, ModuleRun
from core.measurement import Built, Measurement, Outcome
from core.worker import DesiredState, Role, Vitals, WorkerState
from proto.messages import LibraryUpload, OutputsUpload, SyncResponse, WorkerReport
from system import logs, tracing
from system.energy import EnergyMeter
from worker.agent.build_ahead import BuiltBatch, build_ahead
from worker.agent.display import Display, LeaseProgress, LogDisplay
from worker.agent.failed_checks import FailedChecks
from worker.agent.outbox import Outbox
from worker.agent.profile_cache import ProfileCache
from worker.agent.service import FleetClient, NotStored, WorkerRefused
from worker.runner.executor import Executor
from worker.runner.interface import BuildRequest, Exported
from worker.runner.interleaved import time_interleaved
from worker.runner.start_failure import ChildStartError
from worker.settings import SLOTS

_log = logging.getLogger(__name__)

# The shortest pause between two calls, in case a service answers "call again at once" without waiting for
# work.
MIN_PAUSE_S = 0.02
FAREWELL_TIMEOUT_S = 2.0
# A module is called for this long while a meter measures the machine's energy.
ENERGY_S = 1.0

_DESIRED_STATES = {
    DesiredState.WORK: "wanted to work again",
    DesiredState.DRAIN: "drains: takes no other lease until `tunefarm workers resume {}`",
    DesiredState.UPDATE: "must be updated: takes no other lease before that or `tunefarm workers resume {}`",
    DesiredState.EVICTED: "evicted: holds nothing and asks again until `tunefarm workers resume {}`",
}


class Fenced(Exception):
    """Another process uses this worker's name."""


class UpdateRequested(Exception):
    """An administrator has asked this worker to exit, so that its supervisor updates and restarts it."""


@dataclass(frozen=True)
class AgentConfig:
    """Configuration of an agent. Times are seconds.

    slots               candidates to ask for in one lease
    wait_s              how long the service may hold a call of an idle worker
    build_together      candidates that are built in parallel before they are measured one by one
    probe_again_max_s   the longest pause between self-checks of a device that can't measure
    once                exit after one lease
    role                measure on this device, or build for other devices
    override_limits     returns the limits for this device, given a lease's limits
    boot_id             identifies this system until it reboots; empty if unknown
    hardware            the cores or the GPU that this worker measures on
    updates             exit when the desired state is "update": a supervisor updates and restarts this worker
    """

    slots: int = SLOTS
    wait_s: float = 20.0
    build_together: int = 1
    probe_again_max_s: float = 600.0
    once: bool = False
    role: Role = Role.MEASURE
    override_limits: Callable[[Limits], Limits] = lambda limits: limits
    boot_id: str = ""
    hardware: tuple[str, ...] = ()
    updates: bool = False


@dataclass(frozen=True)
class AgentTools:
    """The agent's means besides the service and its child.

    display      shows the worker's activity
    vitals       reads this machine's health
    on_answer    is called after each response of the service
    profiles     the cache of calibrated profiles; without it, the agent doesn't calibrate
    builder      builds a lease's next candidates while the agent's executor measures
    find_meter   returns a meter of this machine's energy; None without one
    """

    display: Display = field(default_factory=LogDisplay)
    vitals: Callable[[], Vitals] = Vitals
    on_answer: Callable[[], None] = lambda: None
    profiles: ProfileCache | None = None
    builder: Executor | None = None
    find_meter: Callable[[], EnergyMeter | None] = lambda: None


class Agent:
    """One session of a worker. One asyncio task reports to the service, another works on leases.

    The reported state derives from the lease that it holds.
    """

    def __init__(
        self,
        worker_id: str,
        session_id: str,
        fleet: FleetClient,
        executor: Executor,
        config: AgentConfig,
        tools: AgentTools | None = None,
    ) -> None:
        tools = tools or AgentTools()
        self._worker_id = worker_id
        self._session_id = session_id
        self._fleet = fleet
        self._executor = executor
        self._config = config
        self._display = tools.display
        self._vitals = tools.vitals
        self._on_answer = tools.on_answer
        self._profiles = tools.profiles
        self._builder = tools.builder
        self._find_meter = tools.find_meter
        self._builds_ahead = False  # whether the builder has passed its self-check
        self._outbox = Outbox()
        self._failed_checks = FailedChecks(config.probe_again_max_s)
        self._starting = True  # set until the service has answered for the first time
        self._device: Device | None = None  # set once it has passed its self-check
        self._held: LeaseProgress | None = None
        self._trace_parent = ""  # of the lease in work, or with results that aren't acknowledged yet
        self._lease_task: asyncio.Task[None] | None = None
        self._desired_state = DesiredState.WORK
        self._service_version = ""
        self._ends_after_lease = False
        self._has_left = False
        self._report_due = asyncio.Event()  # set to call the service at once after a change
        self._work_due = asyncio.Event()  # set if there is a lease or a calibration to work on
        self._calibration_due = False
        self._calibration_unreported = False

    async def run(self) -> None:
        """Work until cancelled; with `once`, until one lease is done. At the end, the child is dead.

        Raises WorkerRefused, SettingsError, UpdateRequested, and Fenced if another session has replaced this
        one.
        """
        tasks = {asyncio.create_task(self._synchronize()), asyncio.create_task(self._serve())}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._executor.close()
            if self._builder is not None:
                await self._builder.close()

    async def farewell(self) -> None:
        """After `run`, try once to deliver the remaining results and to report this worker as offline."""
        self._held, self._has_left = None, True
        with contextlib.suppress(grpc.RpcError, WorkerRefused):
            await self._fleet.synchronize_once(self._report(), FAREWELL_TIMEOUT_S)

    @property
    def state(self) -> WorkerState:
        if self._has_left:
            return WorkerState.OFFLINE
        if self._ends_after_lease or self._desired_state is not DesiredState.WORK:
            return WorkerState.DRAINING
        if self._device is None or (self._calibration_due and self._held is None):
            return WorkerState.PROBING
        return WorkerState.READY if self._held is None else WorkerState.BUSY

    # Reporting to the service

    async def _synchronize(self) -> None:
        """Send reports and apply the responses. With `once`, return when the lease is done and its results
        are delivered."""
        while not self._ends_after_lease or self._held is not None or self._outbox:
            with tracing.below(self._trace_parent if self._held or self._outbox else ""):
                report, response = await self._fleet.synchronize(self._report)
            self._on_answer()
            if self._starting and not response.fenced:
                self._starting = False
                _log.info("connected to the service as %s", self._worker_id)
            await self._apply(report, response)
            pause_s = response.call_again_after_s
            if self._held is not None:
                pause_s = min(pause_s, self._held.lease.expires_after_s / 3)
            # The end of a lease ends the pause early; a single result doesn't.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(pause_s, MIN_PAUSE_S)):
                    await self._report_due.wait()

    def _report(self) -> WorkerReport:
        self._report_due.clear()
        ready = self.state is WorkerState.READY
        vitals = replace(
            self._vitals(),
            sandbox_gaps="; ".join(self._sandbox_gaps),
            health_error=self._failed_checks.health_error,
        )
        if self._held is not None:
            vitals = replace(vitals, candidates=self._held.size, candidates_done=self._held.done)
        device = None if self.state is WorkerState.PROBING else self._device
        return WorkerReport(
            worker_id=self._worker_id,
            session_id=self._session_id,
            starting=self._starting,
            state=self.state,
            device=device,
            held=None if self._held is None else self._held.lease.id,
            results=self._outbox.pending(),
            slots=self._config.slots if ready else 0,
            wait_s=self._config.wait_s if ready else 0.0,
            vitals=vitals,
            role=self._config.role,
            builds_for=() if device is None else self._executor.builds_for,
            calibrated=self._calibration_unreported,
            boot_id=self._config.boot_id,
            hardware=self._config.hardware,
        )

    async def _apply(self, report: WorkerReport, response: SyncResponse) -> None:
        """Apply the service's response to a report. Raises Fenced, WorkerRefused and UpdateRequested."""
        if response.fenced and response.desired_state is not DesiredState.EVICTED:
            raise Fenced(
                f"another worker took over the name {self._worker_id}: "
                "stop one of them, or give them different names with --name"
            )
        if response.desired_state is not self._desired_state:
            self._desired_state = response.desired_state
            self._display.show(_DESIRED_STATES[response.desired_state].format(self._worker_id))
            self._report_due.set()
        self._compare_versions(report.vitals.tunefarm_version, response.service_version)
        if report.calibrated and not response.fenced:
            self._calibration_unreported = False
        elif (
            response.calibrate
            and self._calibrates
            and not (self._calibration_unreported or self._calibration_due)
        ):
            self._calibration_due = True
            self._work_due.set()
        self._outbox.acknowledge(response.acknowledged)
        if report.held is not None and response.keeps != report.held:
            await self._drop_lease()
        if response.lease is not None and self._device is not None and self._held is None:
            if response.lease.build is not (self._config.role is Role.BUILD):
                raise WorkerRefused(
                    "the service doesn't know workers that only build: install the same tunefarm version "
                    "on both sides, or leave out --build"
                )
            self._held = LeaseProgress(response.lease)
            self._display.show(str(self._held))
            self._ends_after_lease = self._config.once
            self._work_due.set()

        if (
            self._desired_state is DesiredState.UPDATE
            and self._config.updates
            and not (self._held or self._outbox)
        ):
            raise UpdateRequested(
                f"the service wants tunefarm {response.service_version} here: start the worker again with it"
            )

    def _compare_versions(self, own: str, of_service: str) -> None:
        """Log that this worker has another version than the service, once for each version of the service."""
        if of_service and own and of_service not in (own, self._service_version):
            self._display.show(
                f"this worker is tunefarm {own}, the service {of_service}: `tunefarm workers update "
                f"{self._worker_id}` updates it, or the line that the dashboard shows"
            )
        self._service_version = of_service

    async def _drop_lease(self) -> None:
        """Stop work on the held lease, unless it was finished during the call."""
        held, self._held = self._held, None
        if held is not None and self._lease_task is not None:
            self._display.show(f"{held.name} was revoked by the service")
            self._lease_task.cancel()
            await asyncio.wait([self._lease_task])

    # Probing and calibrating the device

    async def _serve(self) -> None:
        """Probe the device, then work on one lease after the other. Calibrate between leases if asked to.

        If the child can't be restarted, return the lease and probe again.
        """
        while True:
            await self._probe()
            try:
                while True:
                    await self._work_due.wait()
                    self._work_due.clear()
                    if self._held is not None:
                        await self._work(self._held)
                    if self._calibration_due and self._device is not None:
                        self._device = await self._with_profile(self._device)
                        self._calibration_due = False
                        self._display.show("calibrated: the profile of this device was measured again")
                        self._report_due.set()
            except ChildStartError as error:
                self._display.show(f"returns its lease: {error.failure.line}")
            self._device, self._held = None, None
            self._report_due.set()

    async def _probe(self) -> None:
        """Start children until one passes its self-check. Store the device that it detects."""
        self._display.show("probing: a small program is compiled, run and verified on this device")
        while True:
            try:
                device = await self._executor.start()
                if self._calibrates:
                    device = await self._with_profile(device)
                break
            except ChildStartError as error:
                self._failed_checks.failed(error)
                await asyncio.sleep(self._failed_checks.pause_s)
        self._builds_ahead = await self._starts_builder()
        self._device, self._calibration_due = device, False
        self._failed_checks.passed()
        if self._config.role is Role.BUILD:
            purpose = f"builds for {' and '.join(self._executor.builds_for)}"
        else:
            purpose = f"class {device.key}"
        self._display.show(f"ready: {device.name}, {purpose}")
        self._report_due.set()

    @property
    def _sandbox_gaps(self) -> Sequence[str]:
        """The gaps of all children's sandboxes, each once."""
        builder = () if self._builder is None else self._builder.sandbox_gaps
        return tuple(dict.fromkeys((*self._executor.sandbox_gaps, *builder)))

    async def _starts_builder(self) -> bool:
        """Start the builder. Return False if that fails; then the measuring child builds."""
        if self._builder is None:
            return False
        try:
            await self._builder.start()
        except ChildStartError as error:
            self._display.show(f"builds and measures in turns: its builder fails: {error.failure.line}")
            return False
        return True

    @property
    def _calibrates(self) -> bool:
        return self._profiles is not None and self._config.role is Role.MEASURE

    async def _with_profile(self, device: Device) -> Device:
        """Return the device with its cached profile. Calibrate it if none is cached or if calibration was
        requested.

        If calibration fails, the device has no profile. Raises ChildStartError.
        """
        assert self._profiles is not None, "it calibrates"
        profile = None if self._calibration_due else self._profiles.get(device)
        if profile is None:
            self._display.show("calibrating: measuring this device's speeds takes about ten seconds")
            memory_bytes = self._config.override_limits(Limits()).memory_bytes
            profile = await self._executor.calibrate(memory_bytes)
            self._calibration_unreported = True
            if profile is not None:
                self._profiles.put(device, profile)
        return replace(device, profile=profile)

    # Working on a lease

    async def _work(self, held: LeaseProgress) -> None:
        """Work on the lease in a task that `_drop_lease` may cancel. Raises ChildStartError."""
        with logs.about(lease=held.lease.id.id):
            self._lease_task = asyncio.create_task(self._work_on_lease(held))
        try:
            await asyncio.wait([self._lease_task])
            if not self._lease_task.cancelled():
                self._lease_task.result()
        finally:
            self._lease_task.cancel()
            await asyncio.gather(self._lease_task, return_exceptions=True)
            self._lease_task = None

    async def _work_on_lease(self, held: LeaseProgress) -> None:
        lease, limits = held.lease, self._config.override_limits(held.lease.limits)
        ids = {"lease": lease.id.id, "worker": self._worker_id}
        with tracing.span("work on lease", lease.trace_parent, **ids):
            self._trace_parent = tracing.current()
            await self._settle(held, limits)
        self._held = None
        self._display.show(held.result())
        self._report_due.set()

    async def _settle(self, held: LeaseProgress, limits: Limits) -> None:
        """Work on a lease, and put a result of each of its trials and module runs into the outbox."""
        lease = held.lease
        if lease.module_runs:
            if lease.module_runs[0].kind == "inference":
                timed = [await self._infer(lease.id, run, limits) for run in lease.module_runs]
            else:
                timed = await self._time_modules(lease.module_runs, limits)
            for run, measurement in zip(lease.module_runs, timed, strict=True):
                self._outbox.add_module_run(lease.id, run.id, measurement)
                held.note(measurement)
        # If the service couldn't store results, it sends the lease again. Work that has a result isn't
        # measured again.
        settled = self._outbox.results_of(lease.id)
        for earlier in settled.values():
            held.note(earlier)
        unsettled = [candidate for candidate in lease.candidates if candidate.trial_id not in settled]
        with tempfile.TemporaryDirectory(prefix="tunefarm-libraries-") as folder:
            fetched = await self._fetch(held, unsettled, Path(folder))
            if lease.build:
                await self._build_each(held, fetched, limits)
            else:
                async with contextlib.aclosing(self._batches(fetched, limits, Path(folder))) as batches:
                    await self._measure_each(held, batches, limits)

    def _add_result(self, held: LeaseProgress, trial_id: int, measurement: Measurement | Built) -> None:
        self._outbox.add_trial(held.lease.id, trial_id, measurement)
        held.note(measurement)
        with logs.about(trial=trial_id):
            self._display.show_progress(held)

    async def _fetch(
        self, held: LeaseProgress, candidates: Sequence[Candidate], folder: Path
    ) -> list[tuple[Candidate, BuildRequest]]:
        """Fetch workloads, and libraries into the folder. Candidates whose files can't be fetched fail."""
        fetched = []
        for candidate in candidates:
            try:
                module_json = await self._fleet.workload(candidate.workload_hash)
                library = None
                if candidate.library_sha is not None:
                    library = str(folder / str(candidate.trial_id))
                    await self._fleet.fetch_blob(candidate.library_sha, Path(library))
            except (NotStored, OSError) as error:
                missing = Measurement(Outcome.UNKNOWN, error=f"it could not be fetched: {error}")
                self._add_result(held, candidate.trial_id, missing)
            else:
                request = BuildRequest(
                    held.lease.target,
                    module_json,
                    candidate.trace,
                    candidate.constants,
                    library,
                    export=held.lease.build,
                    model_bytes=held.lease.model_bytes,
                )
                fetched.append((candidate, request))
        return fetched

    async def _build_each(
        self, held: LeaseProgress, fetched: Sequence[tuple[Candidate, BuildRequest]], limits: Limits
    ) -> None:
        for index, (candidate, request) in enumerate(fetched):
            result: Exported | Measurement | Built
            with tracing.span("candidate", trial=candidate.trial_id, workload=candidate.workload_hash):
                result = await self._executor.export(request, limits, self._ahead(fetched, index))
            if isinstance(result, Exported):
                library = LibraryUpload(self._session_id, held.lease.id, candidate.trial_id, result.data)
                refused = await self._fleet.put_library(library)
                if refused:
                    text = f"the service refused the library: {refused}"
                    result = Measurement(Outcome.BUILD_ERROR, error=text)
                else:
                    result = Built(library.sha, result.build_s)
            self._add_result(held, candidate.trial_id, result)

    async def _batches(
        self, fetched: Sequence[tuple[Candidate, BuildRequest]], limits: Limits, folder: Path
    ) -> AsyncGenerator[BuiltBatch]:
        """Yield the candidates in batches: one batch of all, which the measuring child builds, or several
        that the builder has built into the folder."""
        if not self._builds_ahead:
            yield fetched
            return
        assert self._builder is not None, "the builder has passed its self-check"
        size = self._config.build_together
        batches = [fetched[start : start + size] for start in range(0, len(fetched), size)]
        async with contextlib.aclosing(build_ahead(self._builder, batches, limits, folder)) as built:
            async for batch in built:
                yield batch

    async def _measure_each(
        self, held: LeaseProgress, batches: AsyncIterator[BuiltBatch], limits: Limits
    ) -> None:
        best_s = {candidate.workload_hash: candidate.best_s for candidate in held.lease.candidates}
        async for batch in batches:
            for index, (candidate, request) in enumerate(batch):
                known_s = best_s[candidate.workload_hash]
                with tracing.span(
                    "candidate", trial=candidate.trial_id, workload=candidate.workload_hash
                ) as span:
                    if isinstance(request, Measurement):
                        measurement = request
                    else:
                        ahead = self._ahead(batch, index)
                        measurement = await self._executor.measure(request, limits, ahead, known_s)
                    span.set_attribute("tunefarm.outcome", measurement.outcome)
                self._add_result(held, candidate.trial_id, measurement)
                if measurement.outcome is Outcome.OK:
                    best_s[candidate.workload_hash] = min(filter(None, (known_s, measurement.latency_s)))

    def _ahead(self, batch: BuiltBatch, index: int) -> list[BuildRequest]:
        """Return the candidates that are built or loaded together with the candidate at this index."""
        following = (request for _, request in batch[index + 1 : index + self._config.build_together])
        return [request for request in following if isinstance(request, BuildRequest)]

    async def _infer(self, lease: LeaseId, run: ModuleRun, limits: Limits) -> Measurement:
        """Call an artifact with the inputs packed with it, and store its outputs."""
        with tempfile.TemporaryDirectory(prefix="tunefarm-modules-") as folder:
            path = Path(folder) / str(run.id)
            try:
                await self._fleet.fetch_blob(run.artifact_sha, path)
            except (NotStored, OSError) as error:
                return Measurement(Outcome.UNKNOWN, error=f"the module could not be fetched: {error}")
            inferred = await self._executor.infer(path, limits)
        if isinstance(inferred, Measurement):
            return inferred
        refused = await self._fleet.put_outputs(OutputsUpload(self._session_id, lease, run.id, inferred.data))
        if refused:
            return Measurement(Outcome.RUN_ERROR, error=f"the service refused the outputs: {refused}")
        return Measurement(Outcome.OK, (inferred.run_s,))

    async def _time_modules(self, runs: Sequence[ModuleRun], limits: Limits) -> list[Measurement]:
        with tempfile.TemporaryDirectory(prefix="tunefarm-modules-") as folder:

            def path(run: ModuleRun) -> Path:
                return Path(folder) / str(run.id)

            async def first(run: ModuleRun, before: Sequence[Measurement]) -> Measurement:
                try:
                    await self._fleet.fetch_blob(run.artifact_sha, path(run))
                except (NotStored, OSError) as error:
                    return Measurement(Outcome.UNKNOWN, error=f"the module could not be fetched: {error}")
                # If the untuned module failed alone, it would fail in the comparison, too.
                outcomes = {one.kind: measured.outcome for one, measured in zip(runs, before, strict=False)}
                compare = run.compare and outcomes.get("untuned", Outcome.OK) is Outcome.OK
                return await measure(run, compare)

            async def measure(run: ModuleRun, compare: bool) -> Measurement:
                if run.kind == "onnxruntime":
                    return await self._executor.measure_onnx(path(run), limits, run.shapes)
                return await self._executor.measure_module(path(run), limits, compare)

            if [run.kind for run in runs] == ["onnxruntime"]:
                return [await first(runs[0], ())]  # compared with nothing, so one turn is enough
            timed = await time_interleaved(runs, first, lambda run: measure(run, compare=False))
            return [
                await self._measure_energy(path(run), measurement, limits)
                for run, measurement in zip(runs, timed, strict=True)
            ]

    async def _measure_energy(self, artifact: Path, timed: Measurement, limits: Limits) -> Measurement:
        """Add the energy of a call to the footprint of a timed module, if this machine has a meter."""
        meter = self._find_meter()
        if meter is None or timed.footprint is None:
            return timed
        with meter:
            calls = await self._executor.call_module(artifact, limits, ENERGY_S)
        if isinstance(calls, Measurement):
            _log.warning("the energy of a module was not measured: %s", calls.error)
            return timed
        joules = meter.joules(calls.began_s, calls.ended_s)
        energy_j = None if joules is None else joules / calls.count
        return replace(timed, footprint=replace(timed.footprint, energy_j=energy_j))
