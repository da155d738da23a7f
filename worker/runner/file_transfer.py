"""Pass files from the agent to its child, which may run as another user."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from pathlib import Path

from sandbox.privileges import account_of


class FileTransfer:
    """A folder that the child may read but not write. If the child could place a link in it, an agent that
    runs as root might overwrite any file."""

    def __init__(self, user: str) -> None:
        """Create the folder, readable to `user`. The child runs as that user if this process is root.

        Raises OSError.
        """
        self._folder = Path(tempfile.mkdtemp(prefix="tunefarm-given-"))
        self._numbers = itertools.count()
        _open_to_group(self._folder, user, 0o750)

    @property
    def folder(self) -> Path:
        return self._folder

    def add(self, file: Path) -> Path:
        """Return the file's path for the child. Raises OSError.

        It is a hard link if possible, because copying a large model takes seconds, otherwise a copy.
        """
        added = self._folder / str(next(self._numbers))
        try:
            os.link(file, added)
        except OSError:
            shutil.copyfile(file, added)
        added.chmod(0o644)
        return added

    def clear(self) -> None:
        """Delete the files that were added so far."""
        for added in self._folder.iterdir():
            added.unlink(missing_ok=True)

    def close(self) -> None:
        """Delete the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _open_to_group(folder: Path, user: str, mode: int) -> None:
    """If this process is root, let the user's group access the folder. Otherwise the child is the same
    user."""
    if os.geteuid() == 0:
        # The child reports a missing user, or one that this container can't switch to.
        with contextlib.suppress(KeyError, OSError):
            os.chown(folder, 0, account_of(user).gid)
            folder.chmod(mode)
