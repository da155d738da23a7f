"""The data folder: one running stack owns it, and says where it can be reached."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from tunefarm.errors import StackError

# Above everything that supervisord closes before it starts a process: the stack's processes inherit the
# lock, so the folder stays taken until the last one of them has ended.
FIRST_LOCK_FD = 100


@dataclass(frozen=True)
class RunningStack:
    """The stack that owns a folder. `lasting` ones outlive a single job."""

    url: str
    workers_address: str
    pid: int
    lasting: bool


@dataclass(frozen=True)
class DataFolder:
    """Where the embedded stack keeps its database, broker, logs and settings."""

    path: Path

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.path / 'tunefarm.db'}"

    @property
    def broker(self) -> Path:
        return self.path / "broker"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def _note(self) -> Path:
        return self.path / "running.json"

    def prepare(self) -> None:
        """Raises StackError when the folder can't be made or written."""
        try:
            for folder in (self.path, self.logs, self.broker):
                folder.mkdir(parents=True, exist_ok=True)
            probe = self.path / ".writable"
            probe.write_bytes(b"1")
            probe.unlink()
        except OSError as error:
            raise StackError(
                f"the data folder {self.path} can't be written ({error.strerror}): "
                "choose another one with --data DIR"
            ) from error

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Yields the lock's file descriptor. Raises StackError naming the stack that holds it."""
        taken = _take(self.path / "lock")
        if taken is None:
            running = self.running()
            where = f"by the tunefarm at {running.url} (process {running.pid})" if running else "already"
            hint = f"use --server {running.url}" if running else "wait until it has stopped"
            raise StackError(f"the data folder {self.path} is in use {where}: {hint}, or another --data DIR")
        try:
            yield taken
        finally:
            self._note.unlink(missing_ok=True)
            os.close(taken)

    def announce(self, running: RunningStack) -> None:
        fresh = self._note.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(running)))
        fresh.replace(self._note)

    def running(self) -> RunningStack | None:
        """The stack that owns the folder now, or None: nobody does, or it is not ready yet."""
        if not (self.path / "lock").exists():
            return None
        free = _take(self.path / "lock")
        if free is not None:
            os.close(free)
            return None
        try:
            return RunningStack(**json.loads(self._note.read_text()))
        except (OSError, ValueError, TypeError):
            return None


def _take(path: Path) -> int | None:
    """The descriptor of the locked file, or None when another process holds it."""
    try:
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StackError(f"the lock {path} can't be opened ({error.strerror}): check its owner") from error
    descriptor = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, FIRST_LOCK_FD)
    os.close(opened)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
