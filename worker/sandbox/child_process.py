"""A child process as the agent sees it: send, receive, kill, and what it wrote on standard error."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

from worker.sandbox import frames

TAIL_BYTES = 4096
# How long a dead child's last words are waited for: another process may hold its standard error open.
LAST_WORDS_S = 1.0
# How long a child may take to end what it has started.
END_S = 5.0


class ChildDied(Exception):
    """The child ended, or sent what makes no sense; the message says how.

    `code` is its exit code, the negated number of the signal that ended it; None when it isn't known.
    """

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        self.code = code


class ChildProcess:
    """A running child; the agent started its reaper (`worker.sandbox.reaper`), in a session of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._requests = process.stdin
        self._replies = process.stdout
        self._tail = bytearray()
        self._listening = asyncio.create_task(self._listen(process.stderr))

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
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._process.returncode is not None

    async def send(self, message: frames.Message) -> None:
        """Raises ChildDied."""
        try:
            self._requests.write(frames.encode(message))
            await self._requests.drain()
        except OSError as error:
            raise await self._death() from error

    async def receive(self) -> frames.Message:
        """The next reply. Raises ChildDied."""
        try:
            return await frames.receive(self._replies)
        except asyncio.IncompleteReadError as error:
            raise await self._death() from error
        except frames.FrameError as error:
            raise ChildDied(f"the child's reply makes no sense: {error}") from error

    async def last_words(self) -> str:
        """The end of what it has written on standard error, all of it when it is dead."""
        if self._process.returncode is not None:
            await asyncio.wait([self._listening], timeout=LAST_WORDS_S)
        return bytes(self._tail).decode(errors="replace").strip()

    def forget_words(self) -> None:
        """What comes from now on belongs to the next candidate."""
        self._tail.clear()

    async def kill(self) -> None:
        """Kills it and everything it started; returns when it is gone. May be called again."""
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            async with asyncio.timeout(END_S):
                await self._process.wait()
        except TimeoutError:
            os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()
        self._requests.close()
        await asyncio.wait([self._listening], timeout=LAST_WORDS_S)
        self._listening.cancel()

    async def _listen(self, errors: asyncio.StreamReader) -> None:
        while piece := await errors.read(TAIL_BYTES):
            self._tail += piece
            del self._tail[:-TAIL_BYTES]

    async def _death(self) -> ChildDied:
        """It closed its end of the pipes, so it is dead or about to be killed for that."""
        try:
            async with asyncio.timeout(END_S):
                code = await self._process.wait()
        except TimeoutError:
            return ChildDied("the child stopped answering")
        if code >= 0:
            return ChildDied(f"the child exited with code {code}", code)
        return ChildDied(f"the child was ended by {signal_name(-code)}", code)


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
