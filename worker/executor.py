"""Has a child process measure one candidate at a time, and replaces the child when it can't be trusted."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from proto.values import Limits
from search.device import Device
from search.measurement import Measurement, Outcome
from worker import frames
from worker.bench import Phase, Subject
from worker.process import ChildDied, ChildProcess

_log = logging.getLogger(__name__)

PACKAGES = Path(__file__).resolve().parent.parent
SECRETS = ("TUNEFARM_TOKEN", "TUNEFARM_WORKER_TOKEN")
MAX_ERROR_CHARS = 8192

_T = TypeVar("_T")

_DIED = {Phase.BUILD: Outcome.BUILD_ERROR, Phase.RUN: Outcome.RUN_ERROR}
_HUNG = {Phase.BUILD: Outcome.BUILD_TIMEOUT, Phase.RUN: Outcome.RUN_TIMEOUT}
_DURING_BUILD = (_DIED[Phase.BUILD], _HUNG[Phase.BUILD])


class ChildStartError(Exception):
    """No child comes up and passes its check: this device can't measure at the moment."""


@dataclass(frozen=True)
class ChildConfig:
    """How a child is started. `bench` is the MODULE:NAME of a `worker.bench.BenchFactory`."""

    threads: int
    bench: str = "worker.compiler_bench:CompilerBench"
    start_timeout_s: float = 120.0


class Executor:
    """Owns the child. One measurement at a time; nothing that a candidate does raises an exception here.

    `measure...` raise ChildStartError, and when they are cancelled the child dies with the candidate.
    """

    def __init__(self, config: ChildConfig, environment: Mapping[str, str]) -> None:
        self._config = config
        self._environment = environment
        self._child: ChildProcess | None = None
        self._scratch: Path | None = None

    @property
    def child_pid(self) -> int | None:
        return None if self._child is None else self._child.pid

    async def start(self) -> Device:
        """A fresh child, and the device that it found; its check has been passed. Raises ChildStartError."""
        await self.close()
        self._scratch = Path(tempfile.mkdtemp(prefix="tunefarm-child-"))
        try:
            self._child = await ChildProcess.start(self._command(), self._child_environment(self._scratch))
            async with asyncio.timeout(self._config.start_timeout_s):
                return _device(await self._child.receive())
        except TimeoutError as error:
            reason = f"it took longer than {self._config.start_timeout_s:g} s"
            raise await self._start_failure(reason) from error
        except (OSError, ChildDied, frames.FrameError) as error:
            raise await self._start_failure(str(error)) from error
        except asyncio.CancelledError:
            await self.close()
            raise

    async def measure(self, subject: Subject, limits: Limits, ahead: Sequence[Subject] = ()) -> Measurement:
        """Building and running have a time limit each. Those `ahead` are measured next and built already."""
        measurement = await self._measure([subject, *ahead], limits)
        if ahead and measurement.outcome in _DURING_BUILD and self._child is None:
            # Any of those built together may be to blame; a candidate is judged by what it does alone.
            return await self._measure([subject], limits)
        return measurement

    async def _measure(self, subjects: Sequence[Subject], limits: Limits) -> Measurement:
        request = {
            "do": "measure",
            "subjects": [frames.from_subject(subject) for subject in subjects],
            "memory_bytes": limits.memory_bytes,
        }
        allowed_s = {Phase.BUILD: limits.build_timeout_s, Phase.RUN: limits.run_timeout_s}
        return await self._converse(request, Phase.BUILD, allowed_s)

    async def measure_module(self, artifact: Path, limits: Limits) -> Measurement:
        """Times the packed module that is stored in a file."""
        request = {
            "do": "measure_module",
            "path": str(artifact.resolve()),
            "memory_bytes": limits.memory_bytes,
        }
        return await self._converse(request, Phase.RUN, {Phase.RUN: limits.module_timeout_s})

    async def close(self) -> None:
        """Kills the child, if there is one, and removes what it left behind."""
        child, self._child = self._child, None
        scratch, self._scratch = self._scratch, None
        if child is not None:
            await child.kill()
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)

    async def _converse(
        self, request: frames.Message, phase: Phase, allowed_s: Mapping[Phase, float]
    ) -> Measurement:
        if self._child is None:
            await self.start()
        assert self._child is not None, "started"
        conversation = _Conversation(self._child, phase, allowed_s)
        sound = False
        try:
            measurement = await conversation.hold(request)
            # A wrong result has written who knows where; a child that has grown would fail good candidates.
            sound = conversation.sound and measurement.outcome is not Outcome.WRONG_RESULT
            sound = sound and conversation.grown_bytes <= request["memory_bytes"] // 2
        finally:
            if not sound:
                await self.close()
        return measurement

    async def _start_failure(self, reason: str) -> ChildStartError:
        words = ""
        if self._child is not None:
            await self._child.kill()
            words = await self._child.last_words()
        await self.close()
        return ChildStartError(f"the measuring process did not start: {reason}\n{words}".strip())

    def _command(self) -> tuple[str, ...]:
        # -P: a folder named `compiler` where the user stands is not our package
        child = (sys.executable, "-P", "-m", "worker.child", "--parent", str(os.getpid()))
        return (*child, "--bench", self._config.bench, "--threads", str(self._config.threads))

    def _child_environment(self, scratch: Path) -> dict[str, str]:
        kept = {name: value for name, value in self._environment.items() if name not in SECRETS}
        path = [str(PACKAGES), *filter(None, [kept.get("PYTHONPATH")])]
        ours = {
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONFAULTHANDLER": "1",
            "TMPDIR": str(scratch),
            "TVM_NUM_THREADS": str(self._config.threads),
        }
        return kept | ours


class _Conversation:
    """One request and its replies; `sound` tells afterwards whether the child may serve another one."""

    def __init__(self, child: ChildProcess, phase: Phase, allowed_s: Mapping[Phase, float]) -> None:
        self._child = child
        self._phase = phase
        self._allowed_s = allowed_s
        self.sound = False
        self.grown_bytes = 0

    async def hold(self, request: frames.Message) -> Measurement:
        """Never raises for what the candidate or the child does."""
        self._child.forget_words()
        try:
            await self._within_limit(self._child.send(request))
            return await self._listen()
        except TimeoutError:
            allowed_s = self._allowed_s[self._phase]
            return await self._failure(_HUNG, f"the {self._phase} took longer than {allowed_s:g} s")
        except (ChildDied, frames.FrameError) as error:
            return await self._failure(_DIED, f"{error} during the {self._phase}")

    async def _listen(self) -> Measurement:
        while "phase" in (reply := await self._within_limit(self._child.receive())):
            self._enter(reply["phase"])
        if "failed" in reply:
            return await self._failure(_DIED, str(reply["failed"]))
        measurement = frames.to_measurement(reply.get("measurement"))
        self.grown_bytes = int(reply.get("grown_bytes", 0))
        self.sound = True
        return measurement

    async def _within_limit(self, step: Awaitable[_T]) -> _T:
        async with asyncio.timeout(self._allowed_s[self._phase]):
            return await step

    def _enter(self, name: object) -> None:
        try:
            phase = Phase(name)  # type: ignore[arg-type]
        except ValueError as error:
            raise frames.FrameError(str(error)) from error
        if phase not in self._allowed_s:
            raise frames.FrameError(f"the child entered the phase {phase}, which this work doesn't have")
        self._phase = phase

    async def _failure(self, outcomes: Mapping[Phase, Outcome], reason: str) -> Measurement:
        """The child is killed first: what it wrote until then is why it failed."""
        await self._child.kill()
        text = f"{reason}\n{await self._child.last_words()}".strip()
        return Measurement(outcomes[self._phase], error=text[-MAX_ERROR_CHARS:])


def _device(reply: frames.Message) -> Device:
    if "device" not in reply:
        raise frames.FrameError("its first word was not the device")
    try:
        return Device.from_json(reply["device"])
    except (ValueError, TypeError) as error:
        raise frames.FrameError(f"the device that it found makes no sense: {error}") from error
