"""Has a child process build and measure candidates, and replaces the child when it can't be trusted."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import psutil

from core.device import Device
from core.lease import Limits
from core.measurement import Measurement, Outcome
from core.profile import Profile
from system.environment import allowed_variables
from system.settings import SettingsError
from worker.agent.failed_checks import ChildStartError, End, died, ended, timed_out
from worker.runner.child_protocol import Building, Calibrating, Exporting, Running
from worker.runner.interface import BuildRequest, Exported, Phase
from worker.sandbox import frames
from worker.sandbox.child_process import ChildDied, ChildProcess
from worker.sandbox.file_transfer import FileTransfer

_log = logging.getLogger(__name__)

PACKAGES = Path(__file__).resolve().parents[2]
# What the allocators of C++, Python and TVM say.
OUT_OF_MEMORY = ("bad_alloc", "MemoryError", "Cannot allocate memory")
# A candidate may use so many times as much time of every core as it is given seconds.
CPU_SLACK = 2.0
# No other quantity of a device's profile is begun to be measured after this time. What is begun may take as
# long as a child may to start: both are compiled.
CALIBRATION_S = 20.0


class _NoMachine(Exception):
    """Candidates can't be exported for any machine here; the message says what to do."""


@dataclass(frozen=True)
class ChildConfig:
    """How a child is started. `runner` is the MODULE:NAME of a `worker.runner.interface.RunnerFactory`.

    It does `without` some instruction sets. Where the agent is root, it belongs to `user`; None leaves it
    root's, without its capabilities. One that `builds` exports candidates, and is of no use where it can't do
    so for any machine.
    """

    threads: int
    runner: str = "worker.runner.compiler_runner:CompilerRunner"
    start_timeout_s: float = 120.0
    user: str | None = None
    builds: bool = False
    without: tuple[str, ...] = ()


class Executor:
    """Owns the child. One call at a time; nothing that a candidate does raises an exception here.

    `measure...` and `export` raise what `start` does, and when they are cancelled the child dies with the
    candidate.
    """

    def __init__(self, config: ChildConfig, environment: Mapping[str, str]) -> None:
        self._config = config
        self._environment = environment
        self._child: ChildProcess | None = None
        self._scratch: Path | None = None
        self._given: FileTransfer | None = None
        self._gaps: tuple[str, ...] = ()
        self._builds_for: tuple[str, ...] = ()
        self._numbers = itertools.count()
        # What the present child has built, by the numbers it knows it under; what failed to build, all alone.
        self._built: dict[BuildRequest, int] = {}
        self._failed: dict[BuildRequest, Measurement] = {}
        self._has_run = False

    @property
    def child_pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    @property
    def gaps(self) -> tuple[str, ...]:
        """What is not contained on this machine, in sentences, since a child was there."""
        return self._gaps

    @property
    def builds_for(self) -> tuple[str, ...]:
        """The machines that candidates can be exported for, as the last child that came up found."""
        return self._builds_for

    async def start(self) -> Device:
        """A fresh child, and the device that it found; its check has been passed. Raises ChildStartError, and
        SettingsError when trying again makes no sense."""
        await self.close()
        try:
            self._scratch = Path(tempfile.mkdtemp(prefix="tunefarm-child-"))
            self._given = FileTransfer(self._config.user)
            self._child = await ChildProcess.start(self._command(), self._child_environment(self._scratch))
            async with asyncio.timeout(self._config.start_timeout_s):
                first = await self._child.receive()
                device = _device(first)
                self._note_gaps(_gaps(first))
                if self._config.builds:
                    self._note_machines(first)
                return device
        except TimeoutError as error:
            raise await self._start_failure(lambda _: timed_out(self._config.start_timeout_s)) from error
        except ChildDied as error:
            raise await self._start_failure(partial(died, error)) from error
        except OSError as error:
            end = ended("start", f"its measuring process can't be started: {error}")
            raise await self._start_failure(lambda _: end) from error
        except (frames.FrameError, _NoMachine) as error:
            end = ended(type(error).__name__, str(error))
            raise await self._start_failure(lambda _: end) from error
        except (asyncio.CancelledError, SettingsError):
            await self.close()
            raise

    async def measure(
        self,
        subject: BuildRequest,
        limits: Limits,
        ahead: Sequence[BuildRequest] = (),
        best_s: float | None = None,
    ) -> Measurement:
        """Building and running have a time limit each. `best_s` is the best latency known of the workload.

        Those `ahead` are measured next: they are built along, so that none is built while another runs.
        """
        failure = await self._prepare(subject, limits, ahead)
        if failure is not None:
            return failure
        request = {"do": "run", "number": self._built.pop(subject), "best_s": best_s}
        return await self._run(request, limits.run_timeout_s, limits.memory_bytes)

    async def calibrate(self, memory_bytes: int) -> Profile | None:
        """What the device can do. None, and the reason in the log, when that can't be measured: the device
        passed its check, so it is good for work all the same. Raises ChildStartError."""
        allowed_s = CALIBRATION_S + self._config.start_timeout_s
        calibrating = Calibrating(await self._present_child(), Phase.CALIBRATION, allowed_s)
        request = {"do": "calibrate", "budget_s": CALIBRATION_S}
        try:
            use = {"memory_bytes": memory_bytes, "cpu_s": self._cpu_s(allowed_s)}
            profile = await calibrating.calibrate(request | use)
        finally:
            if not calibrating.sound or calibrating.grown_bytes > memory_bytes // 2:
                await self.close()
        if isinstance(profile, Profile):
            return profile
        _log.error("this device can't be calibrated, an ordinary one's speeds are assumed: %s", profile.error)
        return None

    async def export(
        self, subject: BuildRequest, limits: Limits, ahead: Sequence[BuildRequest] = ()
    ) -> Exported | Measurement:
        """A candidate for another machine; see `measure` for those `ahead`."""
        failure = await self._prepare(subject, limits, ahead)
        if failure is not None:
            return failure
        exporting = Exporting(await self._present_child(), Phase.BUILD, limits.build_timeout_s)
        try:
            use = {"memory_bytes": limits.memory_bytes, "cpu_s": self._cpu_s(limits.build_timeout_s)}
            return await exporting.export({"do": "export", "number": self._built.pop(subject)} | use)
        finally:
            if not exporting.sound or exporting.grown_bytes > limits.memory_bytes // 2:
                await self.close()

    async def measure_module(self, artifact: Path, limits: Limits, compare: bool) -> Measurement:
        """A turn of the packed module that is stored in a file; see `worker.runner.interface.Bench`."""
        await self._notice_death()
        await self._present_child()
        assert self._given is not None, "beside the child"
        try:
            given = await asyncio.to_thread(self._given.give, artifact)
        except OSError as error:
            return Measurement(Outcome.UNKNOWN, error=f"the module can't be given to the child: {error}")
        request = {"do": "measure_module", "path": str(given), "compare": compare}
        try:
            measurement = await self._run(request, limits.module_timeout_s, limits.memory_bytes)
            return _explained(measurement, limits.memory_bytes)
        finally:
            given.unlink(missing_ok=True)

    async def close(self) -> None:
        """Kills the child, if there is one, and removes what it left behind."""
        child, self._child = self._child, None
        scratch, self._scratch = self._scratch, None
        given, self._given = self._given, None
        self._built.clear()
        self._has_run = False
        if child is not None:
            await child.kill()
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        if given is not None:
            given.close()

    async def _prepare(
        self, subject: BuildRequest, limits: Limits, ahead: Sequence[BuildRequest]
    ) -> Measurement | None:
        """Afterwards the candidate is built in the present child, or this is how it failed."""
        batch = list(dict.fromkeys([subject, *ahead]))
        self._failed = {known: failure for known, failure in self._failed.items() if known in batch}
        await self._notice_death()
        if subject not in self._built and subject not in self._failed:
            await self._build(batch, limits)
        return self._failed.pop(subject, None)

    async def _notice_death(self) -> None:
        """A child that died while it had nothing to do: that is no candidate's fault."""
        if self._child is not None and self._child.has_ended:
            await self.close()

    async def _build(self, subjects: Sequence[BuildRequest], limits: Limits) -> None:
        """Afterwards each of them is built in the present child, or has failed.

        When a child dies, any of those that it was building may be to blame, and any that ran in it before.
        So each is judged by what it does alone in a child in which nothing has run, then the others are built
        again. When none of them was to blame, all are judged.
        """
        while waiting := [one for one in subjects if one not in self._built and one not in self._failed]:
            ran_before = self._has_run
            failure, suspects = await self._build_together(waiting, limits)
            if len(waiting) > 1:
                await self._judge(suspects, limits)
                if failure is not None and not any(one in self._failed for one in suspects):
                    await self._judge(waiting, limits)
            elif failure is not None and not ran_before:
                self._failed[waiting[0]] = failure

    async def _judge(self, suspects: Sequence[BuildRequest], limits: Limits) -> None:
        for suspect in suspects:
            await self._build([suspect], limits)

    async def _build_together(
        self, subjects: Sequence[BuildRequest], limits: Limits
    ) -> tuple[Measurement | None, list[BuildRequest]]:
        """How the child failed, if it did, and which candidates that may be due to.

        One that the runner refused among others is a suspect too: it may only have lacked memory.
        """
        child = await self._present_child()
        numbered = {next(self._numbers): subject for subject in subjects}
        building = Building(child, numbered, limits.build_timeout_s)
        answer: frozenset[int] | Measurement | None = None
        try:
            request = {
                "do": "build",
                "subjects": await asyncio.to_thread(self._handed_over, numbered),
                "memory_bytes": limits.memory_bytes,
                "cpu_s": self._cpu_s(limits.build_timeout_s * len(subjects)),
            }
            answer = await building.hold(request)
        except OSError as error:
            answer = Measurement(Outcome.UNKNOWN, error=f"a library can't be given to the child: {error}")
        finally:
            if not isinstance(answer, frozenset):
                await self.close()
        if isinstance(answer, Measurement):
            return answer, [one for number, one in numbered.items() if number in building.in_flight]
        self._take_back()
        suspects = {numbered[number] for number in answer if len(numbered) > 1}
        self._built |= {one: number for number, one in numbered.items() if one not in suspects}
        return None, [one for one in subjects if one in suspects]

    async def _run(self, request: frames.Message, allowed_s: float, memory_bytes: int) -> Measurement:
        child = await self._present_child()
        running = Running(child, Phase.RUN, allowed_s)
        self._has_run = True
        sound = False
        try:
            use = {"memory_bytes": memory_bytes, "cpu_s": self._cpu_s(allowed_s)}
            measurement = await running.hold(request | use)
            # A wrong result has written who knows where; a child that has grown would fail good candidates.
            sound = running.sound and measurement.outcome is not Outcome.WRONG_RESULT
            sound = sound and running.grown_bytes <= memory_bytes // 2
        finally:
            if not sound:
                await self.close()
        return measurement

    def _handed_over(self, numbered: Mapping[int, BuildRequest]) -> list[frames.Message]:
        """The candidates as the child is told of them: it finds their libraries where it may read. Raises
        OSError."""
        assert self._given is not None, "beside the child"
        messages = []
        for number, one in numbered.items():
            if one.library is not None:
                one = replace(one, library=str(self._given.give(Path(one.library))))
            messages.append(frames.from_build_request(one) | {"number": number})
        return messages

    def _take_back(self) -> None:
        """What the child has loaded, it needs no more."""
        if self._given is not None:
            self._given.take_back()

    def _cpu_s(self, allowed_s: float) -> float:
        """The agent's clock comes first; this ends a candidate when the agent can't."""
        return CPU_SLACK * allowed_s * self._config.threads

    def _note_machines(self, first: frames.Message) -> None:
        """Raises FrameError, or _NoMachine when there is none to build for."""
        machines = frames.to_machines(first.get("machines", {}))
        if not machines.names:
            raise _NoMachine("; ".join(machines.problems) or "it can link for no machine")
        if machines.names != self._builds_for:
            for problem in machines.problems:
                _log.warning("builds for %s only: %s", ", ".join(machines.names), problem)
        self._builds_for = machines.names

    def _note_gaps(self, gaps: tuple[str, ...]) -> None:
        for gap in gaps:
            if gap not in self._gaps:
                _log.warning("%s", gap)
        self._gaps = gaps

    async def _present_child(self) -> ChildProcess:
        if self._child is None:
            await self.start()
        assert self._child is not None, "started"
        return self._child

    async def _start_failure(self, end: Callable[[str], End]) -> ChildStartError:
        """`end` is told what the child wrote."""
        words = ""
        if self._child is not None:
            await self._child.kill()
            words = await self._child.last_words()
        await self.close()
        return ChildStartError(end(words), words)

    def _command(self) -> tuple[str, ...]:
        # -P: a folder named `compiler` where the user stands is not our package
        child = (sys.executable, "-P", "-m", "worker.runner.child", "--parent", str(os.getpid()))
        runner = ("--runner", self._config.runner, "--threads", str(self._config.threads))
        builds = ("--build",) if self._config.builds else ()
        user = () if self._config.user is None else ("--user", self._config.user)
        without = ("--without", *self._config.without) if self._config.without else ()
        return (*child, *runner, *builds, *user, *without)

    def _child_environment(self, scratch: Path) -> dict[str, str]:
        kept = allowed_variables(self._environment)
        path = [str(PACKAGES), *filter(None, [kept.get("PYTHONPATH")])]
        ours = {
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONFAULTHANDLER": "1",
            "TMPDIR": str(scratch),
            "HOME": str(scratch),
            "TVM_NUM_THREADS": str(self._config.threads),
        }
        return kept | ours


def _explained(measurement: Measurement, memory_bytes: int) -> Measurement:
    """A module run's end; of one that lacked memory, with a last line that says so and what to do."""
    if measurement.outcome is not Outcome.RUN_ERROR:
        return measurement
    there = psutil.virtual_memory().total
    killed = f"ended by {signal.SIGKILL.name}" in measurement.error and memory_bytes > there
    if not killed and not any(word in measurement.error for word in OUT_OF_MEMORY):
        return measurement
    may = f"the model and the untuned one, which it is compared with, may take {_gb(memory_bytes)} here"
    if memory_bytes > there:
        sentence = f"{may}, and this device has {_gb(there)}: time it on a device with more memory"
    else:
        sentence = f"{may}, which isn't enough: raise TUNEFARM_WORKER_MEMORY_BYTES on this device"
    return replace(measurement, error=f"{measurement.error.rstrip()}\n{sentence}")


def _gb(size: int) -> str:
    return f"{size / 1e9:.3g} GB"


def _gaps(first: frames.Message) -> tuple[str, ...]:
    return tuple(map(str, first.get("gaps", ())))


def _device(reply: frames.Message) -> Device:
    """Raises FrameError, and SettingsError when the child says so."""
    if "unusable" in reply:
        raise SettingsError(str(reply["unusable"]))
    if "device" not in reply:
        raise frames.FrameError("its first word was not the device")
    try:
        return Device.from_json(reply["device"])
    except (ValueError, TypeError) as error:
        raise frames.FrameError(f"the device that it found makes no sense: {error}") from error
