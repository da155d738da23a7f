"""Files that the agent gives to its child, which may be another user's."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from worker.sandbox.reaper import account_of


@contextlib.contextmanager
def linkers_cache(user: str) -> Iterator[Path]:
    """A folder that all children of a builder may write, whether they belong to `user` or not: to fill a
    linker's cache takes half a minute. Only for those that run no candidates. Raises OSError."""
    with tempfile.TemporaryDirectory(prefix="tunefarm-linkers-", ignore_cleanup_errors=True) as name:
        _open_to(Path(name), user, 0o770)
        yield Path(name)


class FileTransfer:
    """A folder that the child may read and not write: where it could leave a link, an agent of root's would
    write to wherever that leads."""

    def __init__(self, user: str | None) -> None:
        """`user` is whom the child belongs to if this process is root's. Raises OSError."""
        self._folder = Path(tempfile.mkdtemp(prefix="tunefarm-given-"))
        self._numbers = itertools.count()
        if user is not None:
            _open_to(self._folder, user, 0o750)

    def give(self, file: Path) -> Path:
        """The file for the child: the same one, because to copy a large model takes seconds, or a copy where
        that can't be. Raises OSError."""
        given = self._folder / str(next(self._numbers))
        try:
            os.link(file, given)
        except OSError:
            shutil.copyfile(file, given)
        given.chmod(0o644)
        return given

    def take_back(self) -> None:
        """Removes what was given so far."""
        for given in self._folder.iterdir():
            given.unlink(missing_ok=True)

    def close(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


def _open_to(folder: Path, user: str, mode: int) -> None:
    """To the user's group, if this process is root's: who else it is, owns what it makes."""
    if os.geteuid() == 0:
        # A user that doesn't exist is named when the child starts.
        with contextlib.suppress(KeyError):
            os.chown(folder, 0, account_of(user).gid)
            folder.chmod(mode)
