"""The agent: tells the service what this device does, and does what the service answers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type

from core.device import Device
from core.lease import Candidate, Lease, Limits, ModuleRun
from core.measurement import Built, Measurement, Outcome
from core.worker import Role, Vitals, Wanted, WorkerState
from proto.messages import Answer, LibraryUpload, WorkerReport
from worker.agent.display import Display, LeaseProgress, LogDisplay
from worker.agent.failed_checks import ChildStartError, FailedChecks
from worker.agent.outbox import Outbox
from worker.agent.profile_cache import ProfileCache
from worker.agent.service import FleetClient, NotFound, WorkerRefused
from worker.runner.executor import Executor
from worker.runner.interface import BuildRequest, Exported
from worker.runner.interleaved import time_interleaved
from worker.settings import SLOTS

_log = logging.getLogger(__name__)

# A service that answers "call again at once" without having waited must not be called in a loop.
MIN_PAUSE_S = 0.02
FAREWELL_S = 2.0


class Fenced(Exception):
    """Another process works under this worker's name."""


@dataclass(frozen=True)
class AgentConfig:
    """How the agent behaves. `slots` candidates are asked for at once; an idle call may be held for `wait_s`.

    `build_together` candidates are built on all cores, then measured one after the other. `once`: it ends
    after one lease. A device that can't measure is checked again every `probe_again_max_s`. `overrule` turns
    a lease's limits into those that hold on this device. In the `role` of a builder it exports candidates
    instead.
    """

    slots: int = SLOTS
    wait_s: float = 20.0
    build_together: int = 1
    probe_again_max_s: float = 600.0
    once: bool = False
    role: Role = Role.MEASURE
    overrule: Callable[[Limits], Limits] = lambda limits: limits


_WANTED = {
    Wanted.WORK: "wanted to work again",
    Wanted.DRAIN: "drains: takes no other lease until `tunefarm workers resume {}`",
    Wanted.EVICTED: "evicted: holds nothing and asks again until `tunefarm workers resume {}`",
}


class Agent:
    """One session of a worker. What it tells the service follows from what it holds. Without a place for
    `profiles` it doesn't calibrate."""

    def __init__(
        self,
        worker_id: str,
        session_id: str,
        fleet: FleetClient,
        executor: Executor,
        config: AgentConfig,
        display: Display | None = None,
        vitals: Callable[[], Vitals] = Vitals,
        answered: Callable[[], None] = lambda: None,
        profiles: ProfileCache | None = None,
    ) -> None:
        self._worker_id = worker_id
        self._session_id = session_id
        self._fleet = fleet
        self._executor = executor
        self._agent_config = config
        self._display = display or LogDisplay()
        self._vitals = vitals
        self._answered = answered
        self._profiles = profiles
        self._outbox = Outbox()
        self._starting = True
        self._device: Device | None = None
        self._probed = False
        self._failed_checks = FailedChecks(config.probe_again_max_s)
        self._held: LeaseProgress | None = None
        self._labour: asyncio.Task[None] | None = None
        self._wanted = Wanted.WORK
        self._draining = False  # by its own will, for good
        self._has_left = False
        self._news = asyncio.Event()  # something that the service should hear at once
        self._due = asyncio.Event()  # it holds a lease, or is to calibrate
        self._to_calibrate = False
        self._calibrated = False  # and the service doesn't know it yet

    async def run(self) -> None:
        """Works until cancelled, or until one lease is done when asked for `once`.

        Raises WorkerRefused, SettingsError, and Fenced when another session has taken over. The child is dead
        afterwards.
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

    async def farewell(self) -> None:
        """After `run`: delivers the results that are left, in one try, and says that no more will come."""
        self._held, self._has_left = None, True
        with contextlib.suppress(grpc.RpcError, WorkerRefused):
            await self._fleet.synchronize_once(self._report(), FAREWELL_S)

    @property
    def state(self) -> WorkerState:
        if self._has_left:
            return WorkerState.OFFLINE
        if self._draining or self._wanted is not Wanted.WORK:
            return WorkerState.DRAINING
        if not self._probed or (self._to_calibrate and self._held is None):
            return WorkerState.PROBING
        return WorkerState.READY if self._held is None else WorkerState.BUSY

    # What it tells the service

    async def _synchronize(self) -> None:
        while not self._finished:
            report, answer = await self._fleet.synchronize(self._report)
            self._answered()
            if self._starting and not answer.fenced:
                self._starting = False
                _log.info("in touch with the service as %s", self._worker_id)
            await self._apply(report, answer)
            await self._pause(answer.call_again_after_s)

    def _report(self) -> WorkerReport:
        self._news.clear()
        ready = self.state is WorkerState.READY
        return WorkerReport(
            worker_id=self._worker_id,
            session_id=self._session_id,
            starting=self._starting,
            state=self.state,
            device=None if self.state is WorkerState.PROBING else self._device,
            held=None if self._held is None else self._held.lease.id,
            results=self._outbox.waiting(),
            slots=self._agent_config.slots if ready else 0,
            wait_s=self._agent_config.wait_s if ready else 0.0,
            vitals=self._vitals_of(self._held),
            role=self._agent_config.role,
            builds_for=self._executor.builds_for,
            calibrated=self._calibrated,
        )

    def _vitals_of(self, held: LeaseProgress | None) -> Vitals:
        uncontained = "; ".join(self._executor.gaps)
        vitals = replace(self._vitals(), uncontained=uncontained, trouble=self._failed_checks.trouble)
        return vitals if held is None else replace(vitals, candidates=held.size, candidates_done=held.done)

    async def _apply(self, report: WorkerReport, answer: Answer) -> None:
        """Raises Fenced and WorkerRefused."""
        if answer.fenced and answer.wanted is not Wanted.EVICTED:
            raise Fenced(
                f"another worker took over the name {self._worker_id}: "
                "stop one of them, or give them different names with --name"
            )
        self._heed(answer.wanted)
        self._heed_calibration(report, answer)
        self._outbox.acknowledge(answer.acknowledged)
        if report.held is not None and answer.keeps != report.held:
            await self._drop()
        if answer.lease is not None and self._probed and self._held is None:
            if answer.lease.build is not (self._agent_config.role is Role.BUILD):
                raise WorkerRefused(
                    "the service doesn't know workers that only build: install the same tunefarm version "
                    "on both sides, or leave out --build"
                )
            self._take(answer.lease)

    def _heed(self, wanted: Wanted) -> None:
        """Goes by what people want; says so to them and to the service."""
        if wanted is not self._wanted:
            self._wanted = wanted
            self._display.does(_WANTED[wanted].format(self._worker_id))
            self._news.set()

    def _heed_calibration(self, report: WorkerReport, answer: Answer) -> None:
        if report.calibrated and not answer.fenced:
            self._calibrated = False
        elif answer.calibrate and self._calibrates and not (self._calibrated or self._to_calibrate):
            self._to_calibrate = True
            self._due.set()

    def _take(self, lease: Lease) -> None:
        self._held = LeaseProgress(lease)
        self._display.does(str(self._held))
        self._draining = self._agent_config.once
        self._due.set()

    async def _drop(self) -> None:
        """The service wants the held lease no more; it may have been finished in the meantime."""
        held, self._held = self._held, None
        if held is not None and self._labour is not None:
            self._display.does(f"{held.name} was taken back")
            self._labour.cancel()
            await asyncio.wait([self._labour])

    async def _pause(self, again_s: float) -> None:
        """Until the service wants to be called, sooner when it should hear something at once: the end of a
        lease, but not each result."""
        if self._held is not None:
            again_s = min(again_s, self._held.lease.expires_after_s / 3)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(again_s, MIN_PAUSE_S)):
                await self._news.wait()

    @property
    def _finished(self) -> bool:
        return self._draining and self._held is None and not self._outbox

    # What it does

    async def _serve(self) -> None:
        """Probes, then works on one lease after the other, and calibrates in between when people want it.

        When no child comes up it goes back to probing, and gives back what it held.
        """
        while True:
            await self._probe()
            try:
                while True:
                    await self._due.wait()
                    self._due.clear()
                    await self._work()
                    if self._to_calibrate:
                        await self._calibrate_again()
            except ChildStartError as error:
                self._display.does(f"gives back what it held: {error.end.line}")
            self._probed, self._device, self._held = False, None, None
            self._news.set()

    async def _probe(self) -> None:
        tries = AsyncRetrying(
            retry=retry_if_exception_type(ChildStartError),
            after=self._note_failed_check,
            wait=lambda _: self._failed_checks.pause_s,
        )
        self._display.does("probing: a small program is compiled, run and verified on this device")
        device: Device = await tries(self._started)
        self._device, self._probed, self._to_calibrate = device, True, False
        self._failed_checks.passed()
        self._display.does(f"ready: {device.name}, {self._purpose(device)}")
        self._news.set()

    async def _started(self) -> Device:
        """The device of a child that has passed its check, with its profile. Raises ChildStartError."""
        device = await self._executor.start()
        return await self._with_profile(device) if self._calibrates else device

    def _note_failed_check(self, state: RetryCallState) -> None:
        error = None if state.outcome is None else state.outcome.exception()
        assert isinstance(error, ChildStartError), "nothing else is tried again"
        self._failed_checks.failed(error)

    @property
    def _calibrates(self) -> bool:
        return self._profiles is not None and self._agent_config.role is Role.MEASURE

    async def _with_profile(self, device: Device) -> Device:
        """The device with the profile that it was found to have, or that is measured now; without one where
        that can't be done. Raises ChildStartError."""
        assert self._profiles is not None, "it calibrates"
        profile = None if self._to_calibrate else self._profiles.find(device)
        if profile is None:
            self._display.does("calibrating: measures for about ten seconds what this device can do")
            memory_bytes = self._agent_config.overrule(Limits()).memory_bytes
            profile = await self._executor.calibrate(memory_bytes)
            self._calibrated = True
            if profile is not None:
                self._profiles.keep(device, profile)
        return replace(device, profile=profile)

    async def _calibrate_again(self) -> None:
        """Raises ChildStartError."""
        assert self._device is not None, "it was probed"
        self._device = await self._with_profile(self._device)
        self._to_calibrate = False
        self._display.does("calibrated: the profile of this device was measured again")
        self._news.set()

    def _purpose(self, device: Device) -> str:
        if self._agent_config.role is Role.BUILD:
            return f"builds for {' and '.join(self._executor.builds_for)}"
        return f"class {device.key}"

    async def _work(self) -> None:
        """Works on the lease in a task of its own, which `_drop` may cancel. Raises ChildStartError."""
        held = self._held
        if held is None:
            return
        self._labour = asyncio.create_task(self._measure_all(held))
        try:
            await asyncio.wait([self._labour])
            if not self._labour.cancelled():
                self._labour.result()
        finally:
            self._labour.cancel()
            await asyncio.gather(self._labour, return_exceptions=True)
            self._labour = None

    async def _measure_all(self, held: LeaseProgress) -> None:
        lease, limits = held.lease, self._agent_config.overrule(held.lease.limits)
        if lease.module_runs:
            timed = await self._time_modules(lease.module_runs, limits)
            for run, measurement in zip(lease.module_runs, timed, strict=True):
                self._outbox.add_module_run(lease.id, run.id, measurement)
                held.note(measurement)
        settled = self._outbox.settled(lease.id)
        for earlier in settled.values():
            held.note(earlier)
        left = [candidate for candidate in lease.candidates if candidate.trial_id not in settled]
        with tempfile.TemporaryDirectory(prefix="tunefarm-libraries-") as folder:
            found = await self._subjects(held, left, Path(folder))
            await (self._build_each if lease.build else self._measure_each)(held, found, limits)
        self._held = None
        self._display.does(held.result())
        self._news.set()

    def _add_trial(self, held: LeaseProgress, trial_id: int, measurement: Measurement | Built) -> None:
        self._outbox.add_trial(held.lease.id, trial_id, measurement)
        held.note(measurement)
        self._display.measured(held)

    async def _subjects(
        self, held: LeaseProgress, candidates: Sequence[Candidate], folder: Path
    ) -> list[tuple[Candidate, BuildRequest]]:
        """Those of which the service has all that it takes, libraries in the folder; others have failed."""
        found = []
        for candidate in candidates:
            try:
                found.append((candidate, await self._subject(held.lease, candidate, folder)))
            except (NotFound, OSError) as error:
                missing = Measurement(Outcome.UNKNOWN, error=f"it could not be fetched: {error}")
                self._add_trial(held, candidate.trial_id, missing)
        return found

    async def _subject(self, lease: Lease, candidate: Candidate, folder: Path) -> BuildRequest:
        """Raises NotFound and OSError."""
        module_json = await self._fleet.workload(candidate.workload_hash)
        library = None
        if candidate.library_sha is not None:
            library = str(folder / str(candidate.trial_id))
            await self._fleet.fetch_blob(candidate.library_sha, Path(library))
        return BuildRequest(
            lease.target, module_json, candidate.trace, candidate.constants, library, export=lease.build
        )

    async def _build_each(
        self, held: LeaseProgress, found: Sequence[tuple[Candidate, BuildRequest]], limits: Limits
    ) -> None:
        for number, (candidate, subject) in enumerate(found):
            ahead = self._ahead(found, number)
            exported = await self._executor.export(subject, limits, ahead)
            if isinstance(exported, Exported):
                self._add_trial(held, candidate.trial_id, await self._stored(held, candidate, exported))
            else:
                self._add_trial(held, candidate.trial_id, exported)

    async def _stored(
        self, held: LeaseProgress, candidate: Candidate, exported: Exported
    ) -> Measurement | Built:
        library = LibraryUpload(self._session_id, held.lease.id, candidate.trial_id, exported.data)
        refused = await self._fleet.put_library(library)
        if refused:
            return Measurement(Outcome.BUILD_ERROR, error=f"the service refused the library: {refused}")
        return Built(library.sha, exported.build_secs)

    def _ahead(self, found: Sequence[tuple[Candidate, BuildRequest]], number: int) -> list[BuildRequest]:
        """What is built along with the candidate of this number."""
        return [one for _, one in found[number + 1 : number + self._agent_config.build_together]]

    async def _measure_each(
        self, held: LeaseProgress, found: Sequence[tuple[Candidate, BuildRequest]], limits: Limits
    ) -> None:
        best_s = {candidate.workload_hash: candidate.best_s or math.inf for candidate, _ in found}
        for number, (candidate, subject) in enumerate(found):
            known_s = best_s[candidate.workload_hash]
            measurement = await self._executor.measure(
                subject, limits, self._ahead(found, number), known_s if known_s < math.inf else None
            )
            self._add_trial(held, candidate.trial_id, measurement)
            if measurement.outcome is Outcome.OK:
                best_s[candidate.workload_hash] = min(known_s, measurement.latency_s)

    async def _time_modules(self, runs: Sequence[ModuleRun], limits: Limits) -> list[Measurement]:
        with tempfile.TemporaryDirectory(prefix="tunefarm-modules-") as folder:

            def stored(run: ModuleRun) -> Path:
                return Path(folder) / str(run.id)

            async def first(run: ModuleRun, before: Sequence[Measurement]) -> Measurement:
                try:
                    await self._fleet.fetch_blob(run.artifact_sha, stored(run))
                except (NotFound, OSError) as error:
                    return Measurement(Outcome.UNKNOWN, error=f"the module could not be fetched: {error}")
                # What failed in its own turn would fail again when another one is compared with it.
                ends = {one.kind: end.outcome for one, end in zip(runs, before, strict=False)}
                compare = run.compare and ends.get("untuned", Outcome.OK) is Outcome.OK
                return await self._executor.measure_module(stored(run), limits, compare)

            return await time_interleaved(
                runs, first, lambda run: self._executor.measure_module(stored(run), limits, compare=False)
            )
