"""The data folder of an embedded stack. One running stack locks it, and stores its address there."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from system.locks import try_lock
from tunefarm.errors import StackError

# supervisord closes descriptors below this number before it starts a process. The lock has a higher one, so
# the stack's processes inherit it, and the folder stays locked until the last of them ends.
FIRST_LOCK_FD = 100
# The open files that a process of the stack may need.
OPEN_FILES = 512
# The free bytes that a start needs, for the database's log and the broker's files.
_ROOM_BYTES = 4 << 20


@dataclass(frozen=True)
class RunningStack:
    """The stack that owns a folder. A `lasting` one was started by `up`; others end with their job."""

    url: str
    workers_address: str
    pid: int
    lasting: bool


@dataclass(frozen=True)
class DataFolder:
    """The folder of an embedded stack's database, broker, logs and lock."""

    path: Path

    @property
    def database_file(self) -> Path:
        return self.path / "tunefarm.db"

    @property
    def database_url(self) -> str:
        return f"sqlite:///{self.database_file}"

    @property
    def broker(self) -> Path:
        return self.path / "broker"

    @property
    def signing_key(self) -> Path:
        return self.path / "signing-key.pem"

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def _running_file(self) -> Path:
        return self.path / "running.json"

    def prepare(self) -> None:
        """Create the folder, readable by its owner only. Raises StackError if it can't be created or written.

        An existing folder that isn't a data folder yet keeps its mode. Files created in it are readable by
        their owner only.
        """
        try:
            is_ours = not self.path.exists() or (self.path / "lock").exists()
            for folder in (self.path, self.logs, self.broker):
                folder.mkdir(parents=True, exist_ok=True)
                # mkdir's mode is subject to the umask. Only the folder's owner can change it.
                if folder.stat().st_uid == os.geteuid() and (is_ours or folder != self.path):
                    folder.chmod(0o700)
            for suffix in ("", "-wal", "-shm"):
                file = self.path / f"{self.database_file.name}{suffix}"
                if file.exists() and file.stat().st_uid == os.geteuid():
                    file.chmod(0o600)
            probe = self.path / ".writable"
            probe.write_bytes(b"1")
            probe.unlink()
        except OSError as error:
            raise StackError(
                f"the data folder {self.path} can't be written ({error.strerror}): "
                "choose another one with --data DIR"
            ) from error

    def has_room(self) -> bool:
        """Return whether the folder's disk has enough space for the processes to start and run."""
        return shutil.disk_usage(self.path).free >= _ROOM_BYTES

    @contextmanager
    def locked(self) -> Iterator[int]:
        """Lock the folder, and yield the lock's descriptor. Raises StackError that names the stack with the
        lock."""
        descriptor = _lock(self.path / "lock")
        if descriptor is None:
            running = self.running()
            where = f"by the tunefarm at {running.url} (process {running.pid})" if running else "already"
            hint = f"use --server {running.url}" if running else "wait until it has stopped"
            raise StackError(f"the data folder {self.path} is in use {where}: {hint}, or another --data DIR")
        try:
            yield descriptor
        finally:
            self._running_file.unlink(missing_ok=True)
            os.close(descriptor)

    def announce(self, running: RunningStack) -> None:
        """Store the stack's address."""
        fresh = self._running_file.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(running)))
        fresh.replace(self._running_file)

    def running(self) -> RunningStack | None:
        """Return the stack that has locked the folder; None without one, or while it isn't ready."""
        if not (self.path / "lock").exists():
            return None
        descriptor = _lock(self.path / "lock")
        if descriptor is not None:
            os.close(descriptor)
            return None
        try:
            return RunningStack(**json.loads(self._running_file.read_text()))
        except (OSError, ValueError, TypeError):
            return None


def _lock(path: Path) -> int | None:
    """Lock a file and return its descriptor; None if another process has locked it."""
    try:
        opened = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StackError(f"the lock {path} can't be opened ({error.strerror}): check its owner") from error
    _allow_open_files()
    descriptor = fcntl.fcntl(opened, fcntl.F_DUPFD_CLOEXEC, FIRST_LOCK_FD)
    os.close(opened)
    return try_lock(descriptor)


def _allow_open_files() -> None:
    """Let this process and its children open OPEN_FILES files each. Raises StackError if the limit is
    lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES:
        raise StackError(
            f"a process may open only {hard} files here, and the service needs {OPEN_FILES}: raise the hard "
            "limit of open files (`ulimit -Hn`), then start it again"
        )
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard))
