"""Plug-ins: installed packages that extend tunefarm by entry points.

Whoever installs a package runs its code; nothing that comes over the network names one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, entry_points, version
from typing import Any

RULES = "tunefarm.rules"
VARIANTS = "tunefarm.variants"
INTRINSICS = "tunefarm.intrinsics"
# A plug-in's intrinsic in a trace: the package, its version, and the name of the entry point.
_NAME = re.compile(r"([\w-]+?)\.v([\w.]+)\.(\w+)")


class PluginError(Exception):
    """A plug-in is missing or can't be used. The message is one sentence with the next step."""


@dataclass(frozen=True)
class Extension:
    """What the entry point `name` of a package gives."""

    package: str
    version: str
    name: str
    value: Any

    @property
    def full_name(self) -> str:
        """A name that says which package it takes, in letters that traces may contain."""
        return f"{_plain(self.package)}.v{_plain(self.version)}.{_plain(self.name)}"


@cache
def extensions(group: str) -> tuple[Extension, ...]:
    """Return what all plug-ins add to a group, in the order of their names. Raises PluginError."""
    found = []
    entries = [(entry.dist, entry) for entry in entry_points(group=group) if entry.dist is not None]
    for owner, entry in sorted(entries, key=lambda pair: (pair[0].name, pair[1].name)):
        package, number = owner.name, owner.version
        try:
            found.append(Extension(package, number, entry.name, entry.load()))
        except Exception as error:  # it is anybody's code
            raise PluginError(
                f"the plug-in {package} {number} can't be loaded ({type(error).__name__}: {error}): "
                f"mend it, or uninstall it with `pip uninstall {package}`"
            ) from error
    return tuple(found)


def is_plugins(name: str) -> bool:
    """Whether the full name is that of a plug-in's extension."""
    return _NAME.fullmatch(name) is not None


def extension(group: str, full_name: str) -> Extension:
    """Return the extension with this full name. Raises PluginError, which says what is missing."""
    for one in extensions(group):
        if one.full_name == full_name:
            return one
    parts = _NAME.fullmatch(full_name)
    package, wanted, name = parts.groups() if parts else (full_name, "", "")
    needed = f"{package} {wanted.replace('_', '.')}"
    try:
        have = f"has version {version(package)} of it" if parts else "hasn't got it"
    except PackageNotFoundError:
        have = "hasn't got it"
    raise PluginError(
        f"the schedule needs '{name}' of the plug-in {needed}, and this machine {have}: install "
        f"{needed} for this Python, or evict this worker"
    )


def _plain(text: str) -> str:
    return re.sub(r"\W", "_", text)
