"""What the agent and its child say to each other about one request, and what silence means."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Collection
from typing import TypeVar

from core.measurement import Measurement, Outcome
from core.profile import Profile
from worker.runner.interface import Exported, Phase
from worker.sandbox import frames
from worker.sandbox.child_process import ChildDied, ChildProcess

MAX_ERROR_CHARS = 8192

_T = TypeVar("_T")

_DIED = {
    Phase.BUILD: Outcome.BUILD_ERROR,
    Phase.RUN: Outcome.RUN_ERROR,
    Phase.CALIBRATION: Outcome.RUN_ERROR,
}
_HUNG = {
    Phase.BUILD: Outcome.BUILD_TIMEOUT,
    Phase.RUN: Outcome.RUN_TIMEOUT,
    Phase.CALIBRATION: Outcome.RUN_TIMEOUT,
}


class _RunnerError(Exception):
    """The runner raised; the message is its traceback."""


class ChildRequest:
    """One request and its replies. Nothing that the child does raises an exception here: a child that doesn't
    answer as it should is killed, and that is the answer."""

    def __init__(self, child: ChildProcess, phase: Phase, allowed_s: float) -> None:
        self._child = child
        self._phase = phase
        self._allowed_s = allowed_s

    async def _concluded(self, replies: Awaitable[_T]) -> _T | Measurement:
        """What the replies amount to, or how they failed to come."""
        self._child.forget_words()
        try:
            return await replies
        except TimeoutError:
            reason = f"the {self._phase} took longer than {self._allowed_s:g} s"
            return await self._failure(_HUNG[self._phase], reason)
        except (ChildDied, frames.FrameError) as error:
            return await self._failure(_DIED[self._phase], f"{error} during the {self._phase}")
        except _RunnerError as error:
            return await self._failure(_DIED[self._phase], str(error))

    async def _send(self, request: frames.Message) -> None:
        async with asyncio.timeout(self._allowed_s):
            await self._child.send(request)

    async def _receive(self, until: float) -> frames.Message:
        """The next reply, if it comes before the event loop's clock says `until`."""
        async with asyncio.timeout_at(until):
            reply = await self._child.receive()
        if "failed" in reply:
            raise _RunnerError(str(reply["failed"]))
        return reply

    async def _failure(self, outcome: Outcome, reason: str) -> Measurement:
        """The child is killed first: what it wrote until then is why it failed."""
        await self._child.kill()
        text = f"{reason}\n{await self._child.last_words()}".strip()
        return Measurement(outcome, error=text[-MAX_ERROR_CHARS:])


class Running(ChildRequest):
    """About a candidate or a module that runs. `sound` tells afterwards whether the child answered."""

    sound = False
    grown_bytes = 0

    async def hold(self, request: frames.Message) -> Measurement:
        return await self._concluded(self._replies(request))

    async def _replies(self, request: frames.Message) -> Measurement:
        reply = await self._answered(request)
        measurement = frames.to_measurement(reply.get("measurement"))
        self.sound = True
        return measurement

    async def _answered(self, request: frames.Message) -> frames.Message:
        """The one reply that there is."""
        await self._send(request)
        reply = await self._receive(_now() + self._allowed_s)
        self.grown_bytes = frames.to_number(reply.get("grown_bytes"))
        return reply


class Exporting(Running):
    """About a candidate that was built to be exported."""

    async def export(self, request: frames.Message) -> Exported | Measurement:
        return await self._concluded(self._exported(request))

    async def _exported(self, request: frames.Message) -> Exported | Measurement:
        exported = frames.to_export(await self._answered(request))
        self.sound = True
        return exported


class Calibrating(Running):
    """About the device itself."""

    async def calibrate(self, request: frames.Message) -> Profile | Measurement:
        """The device's profile, or how the child failed to measure it."""
        return await self._concluded(self._profile(request))

    async def _profile(self, request: frames.Message) -> Profile:
        profile = frames.to_profile((await self._answered(request)).get("profile"))
        self.sound = True
        return profile


class Building(ChildRequest):
    """About candidates that are built, several at a time; each has the time limit for itself."""

    def __init__(self, child: ChildProcess, numbers: Collection[int], allowed_s: float) -> None:
        super().__init__(child, Phase.BUILD, allowed_s)
        self._numbers = frozenset(numbers)
        self._waiting = set(numbers)
        self._began_at: dict[int, float] = {}

    @property
    def in_flight(self) -> frozenset[int]:
        """After a failure: the candidates that were being built."""
        return frozenset(self._began_at)

    async def hold(self, request: frames.Message) -> frozenset[int] | Measurement:
        """Which candidates the runner refused, or how the child failed."""
        return await self._concluded(self._replies(request))

    async def _replies(self, request: frames.Message) -> frozenset[int]:
        await self._send(request)
        while "refused" not in (reply := await self._receive(self._deadline())):
            self._note(reply)
        refused = frames.to_numbers(reply["refused"])
        if self._waiting or self._began_at or not refused <= self._numbers:
            raise frames.FrameError("the child's reply is not about what it was asked to build")
        return refused

    def _deadline(self) -> float:
        return min(self._began_at.values(), default=_now()) + self._allowed_s

    def _note(self, reply: frames.Message) -> None:
        """Every candidate begins once and ends once, so replies can't go on for ever. Raises FrameError."""
        number = frames.to_number(reply.get("begun", reply.get("ended")))
        if "begun" in reply and number in self._waiting:
            self._waiting.remove(number)
            self._began_at[number] = _now()
        elif "ended" in reply and number in self._began_at:
            del self._began_at[number]
        else:
            raise frames.FrameError(f"the child's reply makes no sense: {str(reply)[:200]}")


def _now() -> float:
    return asyncio.get_running_loop().time()
