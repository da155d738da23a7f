"""A cache for tools that are slow to start. It never contains results of untrusted input."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

# The variable with the folder of zig's cache, and the name of each child's own folder for it.
ZIG_CACHE = "ZIG_GLOBAL_CACHE_DIR"
CACHE_FOLDER = "zig"


def seed_name(use: str) -> str:
    """Return the name of a seed for the installed version of zig. Other versions can't use it."""
    try:
        return f"ziglang-{version('ziglang')}-{use}"
    except PackageNotFoundError:
        return use


@dataclass(frozen=True)
class CacheSeed:
    """A folder with a cache that only trusted work has filled. Each child gets a copy.

    Filling zig's cache takes half a minute, copying it a fraction of a second. Children don't share a cache,
    because a compromised child could leave code there for other children's libraries.
    """

    folder: Path

    @property
    def is_filled(self) -> bool:
        return self.folder.is_dir()

    def copy_to(self, cache: Path) -> None:
        """Create a child's cache: a copy of the seed if it is filled. Raises OSError."""
        if self.is_filled:
            shutil.copytree(self.folder, cache, symlinks=True)
        else:
            cache.mkdir()

    def fill_from(self, cache: Path) -> None:
        """Fill the seed with the cache of a child that has processed no untrusted input, unless it is filled.

        Raises OSError.
        """
        if self.is_filled or not any(cache.iterdir()):
            return
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self.folder.parent, ignore_cleanup_errors=True) as beside:
            copied = shutil.copytree(cache, Path(beside) / CACHE_FOLDER, symlinks=True)
            with contextlib.suppress(FileExistsError):  # another process was faster
                copied.rename(self.folder)
