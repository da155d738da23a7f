"""A folder for a process's temporary files. It is deleted even if the process is killed."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from system.locks import try_lock


@contextlib.contextmanager
def scratch_folder(kind: str) -> Iterator[Path]:
    """Make this process create temporary files in a separate folder, which is removed at the end.

    Folders that killed processes of the same kind and user left behind are removed first. Raises OSError.
    """
    parent = Path(tempfile.gettempdir())
    prefix = f"tunefarm-{kind}-"
    for left in parent.glob(f"{prefix}*"):
        _remove_if_abandoned(left)
    folder, lock = _locked_folder(parent, prefix)
    # Measured code may run as another user, with a folder below this one.
    folder.chmod(0o711)
    before, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield folder
    finally:
        tempfile.tempdir = before
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _locked_folder(parent: Path, prefix: str) -> tuple[Path, int]:
    """Return a new folder and the descriptor of its lock, which the kernel frees with this process."""
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        # Before it is locked, a process that starts at the same time may take it for abandoned.
        with contextlib.suppress(FileNotFoundError):
            lock = _lock(folder)
            if lock is not None and folder.exists():
                return folder, lock
            if lock is not None:
                os.close(lock)


def _remove_if_abandoned(folder: Path) -> None:
    with contextlib.suppress(OSError):
        if folder.lstat().st_uid != os.geteuid():
            return
        lock = _lock(folder)
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """Return the descriptor that holds the folder's lock; None if another process holds it."""
    return try_lock(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
