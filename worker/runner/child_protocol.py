"""The agent's side of one call to the child: its request, its replies, its time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import TypeVar

from core.measurement import Measurement, Outcome
from proto.child_pb2 import ChildReply, ChildRequest
from proto.convert import MAX_ERROR_CHARS, clean_text
from worker.runner.child_process import ChildDied, ChildProcess
from worker.runner.frames import MAX_REPLY_BYTES, FrameError
from worker.runner.interface import Phase

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
    """The runner raised an exception in the child. The message is its traceback."""


class ChildCall:
    """One call to the child. The child's failures don't raise exceptions here. A child that replies wrongly
    is killed, and the result is its failure."""

    def __init__(
        self, child: ChildProcess, phase: Phase, timeout_s: float, max_reply_bytes: int = MAX_REPLY_BYTES
    ) -> None:
        self._child = child
        self._phase = phase
        self._timeout_s = timeout_s
        self._max_reply_bytes = max_reply_bytes

    async def _outcome(self, replies: Awaitable[_T]) -> _T | Measurement:
        """Await the replies; return their result, or the child's failure."""
        self._child.clear_stderr()
        try:
            return await replies
        except TimeoutError:
            outcome, reason = _HUNG[self._phase], f"the {self._phase} took longer than {self._timeout_s:g} s"
        except (ChildDied, FrameError) as error:
            outcome, reason = _DIED[self._phase], f"{error} during the {self._phase}"
        except _RunnerError as error:
            outcome, reason = _DIED[self._phase], str(error)
        # Killed first, so that its standard error, which explains the failure, is complete.
        await self._child.kill()
        text = f"{reason}\n{await self._child.stderr_tail()}".strip()
        return Measurement(outcome, error=text[-MAX_ERROR_CHARS:])

    async def _send(self, request: ChildRequest) -> None:
        async with asyncio.timeout(self._timeout_s):
            await self._child.send(request)

    async def _receive(self, deadline: float) -> ChildReply:
        """Await the next reply, until the event loop's clock reaches the deadline."""
        async with asyncio.timeout_at(deadline):
            reply = await self._child.receive(self._max_reply_bytes)
        if reply.WhichOneof("reply") == "failed":
            raise _RunnerError(clean_text(reply.failed))
        return reply


class UnaryCall(ChildCall):
    """A call with one reply. Afterwards `succeeded` says whether that reply could be decoded, and
    `grown_bytes` by how much the child's address space has grown since it started."""

    succeeded = False
    grown_bytes = 0

    async def result(self, request: ChildRequest, decode: Callable[[ChildReply], _T]) -> _T | Measurement:
        return await self._outcome(self._reply(request, decode))

    async def _reply(self, request: ChildRequest, decode: Callable[[ChildReply], _T]) -> _T:
        await self._send(request)
        reply = await self._receive(_now() + self._timeout_s)
        self.grown_bytes = reply.grown_bytes
        decoded = decode(reply)
        self.succeeded = True
        return decoded


class BuildCall(ChildCall):
    """A call to build candidates, several at a time: the child replies when it begins and ends each of them.
    The time limit applies to each candidate."""

    def __init__(self, child: ChildProcess, numbers: Collection[int], timeout_s: float) -> None:
        super().__init__(child, Phase.BUILD, timeout_s)
        self._numbers = frozenset(numbers)
        self._waiting = set(numbers)
        self._began_at: dict[int, float] = {}

    @property
    def in_flight(self) -> frozenset[int]:
        """The candidates that were being built when the child failed."""
        return frozenset(self._began_at)

    async def result(self, request: ChildRequest) -> frozenset[int] | Measurement:
        """Return which candidates failed to build, or how the child failed."""
        return await self._outcome(self._replies(request))

    async def _replies(self, request: ChildRequest) -> frozenset[int]:
        await self._send(request)
        while True:
            deadline = min(self._began_at.values(), default=_now()) + self._timeout_s
            reply = await self._receive(deadline)
            kind = reply.WhichOneof("reply")
            # Every candidate begins once and ends once, so the number of replies is bounded.
            if kind == "begun" and reply.begun in self._waiting:
                self._waiting.remove(reply.begun)
                self._began_at[reply.begun] = _now()
            elif kind == "ended" and reply.ended in self._began_at:
                del self._began_at[reply.ended]
            elif kind == "refused":
                break
            else:
                raise FrameError(f"the child's reply makes no sense: {kind} was not expected")
        refused = frozenset(reply.refused.numbers)
        if self._waiting or self._began_at or not refused <= self._numbers:
            raise FrameError("the child's reply names a candidate that it was not asked to build")
        return refused


def _now() -> float:
    return asyncio.get_running_loop().time()
