"""Files that the agent makes readable to its child, which may run as another user."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from pathlib import Path

from sandbox.privileges import account_of


class FileTransfer:
    """A folder that the child may read but not write. If it could leave a link there, an agent that runs as
    root could be made to write any file.
    """

    def __init__(self, user: str) -> None:
        """Make the folder readable to `user`, whom the child runs as if this process is root's.

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

        It is a hard link where possible, since copying a large model takes seconds, and a copy elsewhere.
        """
        added = self._folder / str(next(self._numbers))
        try:
            os.link(file, added)
        except OSError:
            shutil.copyfile(file, added)
        added.chmod(0o644)
        return added

    def clear(self) -> None:
        """Remove the files that were added so far."""
        for added in self._folder.iterdir():
            added.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


def _open_to_group(folder: Path, user: str, mode: int) -> None:
    """Give the folder to the user's group, if this process is root's; otherwise both are the same user."""
    if os.geteuid() == 0:
        # The child reports a user that doesn't exist, or one that this container can't switch to.
        with contextlib.suppress(KeyError, OSError):
            os.chown(folder, 0, account_of(user).gid)
            folder.chmod(mode)
