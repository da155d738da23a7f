"""The agent's end of a child process: send, receive, kill, and read its standard error."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

from proto.child_pb2 import ChildReply, ChildRequest
from sandbox import family_memory, reaper
from worker.runner import child_messages, frames

TAIL_BYTES = 4096
# Reading a dead child's standard error ends after this time: another process may hold the pipe open.
STDERR_TIMEOUT_S = 1.0


class ChildDied(Exception):
    """The child ended, or sent bytes that aren't a message. The text says which.

    `code` is its exit code, or the negated number of the signal that ended it; None if unknown.
    """

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class ChildProcess:
    """A running child. `process` is its reaper (`sandbox`), in its own session."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._requests = process.stdin
        self._replies = process.stdout
        self._stderr_tail = bytearray()
        self._family_most: int | None = None
        self._memory_error = ""
        self._watching_memory = asyncio.create_task(self._watch_memory())
        self._reading_stderr = asyncio.create_task(self._read_stderr(process.stderr))

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str]) -> ChildProcess:
        """Raises OSError when the program can't be started."""
        process = await asyncio.create_subprocess_exec(
            *command,
            env=dict(environment),
            start_new_session=True,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        return cls(process)

    @property
    def pid(self) -> int:
        """The reaper's process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def send(self, request: ChildRequest) -> None:
        """Send a request. Its `memory_bytes` limit the child's processes together from now on (see
        `sandbox.family_memory`). Raises ChildDied."""
        self._family_most = family_memory.most_bytes(request.memory_bytes)
        try:
            self._requests.write(frames.encode(request.SerializeToString()))
            await self._requests.drain()
        except OSError as error:
            raise await self._death() from error

    async def receive(self, max_bytes: int = frames.MAX_REPLY_BYTES) -> ChildReply:
        """Await the next reply, of at most `max_bytes`. Raises ChildDied."""
        try:
            return child_messages.parse_reply(await frames.receive(self._replies, max_bytes))
        except asyncio.IncompleteReadError as error:
            raise await self._death() from error
        except frames.FrameError as error:
            raise ChildDied(f"the child's reply makes no sense: {error}") from error

    async def stderr_tail(self) -> str:
        """Return the end of the child's standard error. If the child is dead, it is complete."""
        if self._process.returncode is not None:
            await asyncio.wait([self._reading_stderr], timeout=STDERR_TIMEOUT_S)
        return bytes(self._stderr_tail).decode(errors="replace").strip()

    def clear_stderr(self) -> None:
        """Delete the output so far, because later output belongs to the next candidate."""
        self._stderr_tail.clear()

    async def kill(self) -> None:
        """Kill the child and all processes that it started. Return when all have ended. May be called
        repeatedly."""
        # asyncio waits for a process until its pipes are read to the end, so the rest of a reply that is too
        # long is discarded.
        reading_rest = asyncio.create_task(self._discard_replies())
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(reaper.END_SIGNAL)
        try:
            async with asyncio.timeout(reaper.END_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        self._requests.close()
        await asyncio.wait([self._reading_stderr, reading_rest], timeout=STDERR_TIMEOUT_S)
        self._reading_stderr.cancel()
        self._watching_memory.cancel()
        reading_rest.cancel()

    async def _discard_replies(self) -> None:
        while await self._replies.read(frames.MAX_REPLY_BYTES):
            pass

    async def _read_stderr(self, stderr: asyncio.StreamReader) -> None:
        while piece := await stderr.read(TAIL_BYTES):
            self._stderr_tail += piece
            del self._stderr_tail[:-TAIL_BYTES]

    async def _watch_memory(self) -> None:
        """Kill the child once its processes together use too much memory."""
        while not self.has_ended:
            await asyncio.sleep(family_memory.INTERVAL_S)
            most = self._family_most
            if most is None:
                continue
            if taken := await asyncio.to_thread(family_memory.bytes_above, self.pid, most):
                self._memory_error = (
                    f"the child's processes took {taken / 1e9:.3g} GB of memory together, "
                    f"more than {most / 1e9:.3g} GB"
                )
                with contextlib.suppress(ProcessLookupError):
                    self._process.send_signal(reaper.END_SIGNAL)
                return

    async def _death(self) -> ChildDied:
        """Return how the child ended. It has closed its pipes, so it has exited or will be killed."""
        try:
            async with asyncio.timeout(reaper.END_TIMEOUT_S):
                code = await self._process.wait()
        except TimeoutError:
            return ChildDied("the child stopped answering")
        if self._memory_error:
            return ChildDied(self._memory_error, code)
        if code >= 0:
            return ChildDied(f"the child exited with code {code}", code)
        return ChildDied(f"the child was ended by {signal_name(-code)}", code)


def signal_name(number: int) -> str:
    """Return a signal's name such as SIGSEGV, or "signal 250" for a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
