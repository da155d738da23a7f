"""The memory that this process and its children may use."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")


def usable_memory_bytes() -> int:
    """Return the machine's memory, or the limit of this process's container if it is lower."""
    physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min([physical, *_limits(OWN_CGROUPS, CGROUPS)])


def _limits(own: Path, cgroups: Path) -> Iterator[int]:
    """Yield the limits of the process's control groups and of all groups around them, in both versions of
    Linux's interface.

    A container may see its own group as the root, or by the host's path, which doesn't exist inside.
    """
    for line in own.read_text().splitlines() if own.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, name = cgroups, "memory.max"
        elif "memory" in controllers.split(","):
            root, name = cgroups / "memory", "memory.limit_in_bytes"
        else:
            continue
        group = root / path.strip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(root) and (folder / name).exists():
                limit = (folder / name).read_text().strip()
                if limit.isdigit():  # not "max"
                    yield int(limit)
