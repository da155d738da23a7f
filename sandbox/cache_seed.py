"""A cache of tools that are slow to start. No stranger's input has touched it."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# The variable that names zig's cache, and the name of each child's own folder for it.
ZIG_CACHE = "ZIG_GLOBAL_CACHE_DIR"
CACHE_FOLDER = "zig"


def seed_name(use: str) -> str:
    """Return the name of a seed for the zig that is installed: another version can't use its contents."""
    try:
        return f"ziglang-{version('ziglang')}-{use}"
    except PackageNotFoundError:
        return use


@dataclass(frozen=True)
class CacheSeed:
    """A folder with the contents that a cache has after trusted work only. Each child gets a copy.

    Filling zig's cache takes half a minute, copying it a moment. Children don't share a cache: a child that
    was taken over could leave code for other children's libraries.
    """

    folder: Path

    @property
    def is_filled(self) -> bool:
        return self.folder.is_dir()

    def copy_to(self, cache: Path) -> None:
        """Make a child's cache, a copy if there is something to copy. Raises OSError."""
        if self.is_filled:
            shutil.copytree(self.folder, cache, symlinks=True)
        else:
            cache.mkdir()

    def fill_from(self, cache: Path) -> None:
        """Keep the cache of a child that has worked on nothing of a stranger's, unless there is one already.

        Raises OSError.
        """
        if self.is_filled or not any(cache.iterdir()):
            return
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder.parent, ignore_cleanup_errors=True) as beside:
            copied = shutil.copytree(cache, Path(beside) / CACHE_FOLDER, symlinks=True)
            with contextlib.suppress(FileExistsError):  # another process was faster
                copied.rename(self.folder)
