"""Plug-ins: installed packages that extend tunefarm by entry points.

Installing a package runs its code. Data from the network can't load a package.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import EntryPoint, PackageNotFoundError, entry_points, version
from typing import Any

RULES = "tunefarm.rules"
VARIANTS = "tunefarm.variants"
INTRINSICS = "tunefarm.intrinsics"
OBJECTIVES = "tunefarm.objectives"
# A plug-in's intrinsic in a trace: the package, its version, and the name of the entry point.
_NAME = re.compile(r"([\w-]+?)\.v([\w.]+)\.(\w+)")


class PluginError(Exception):
    """A plug-in is missing or can't be used. The message is one sentence with the next step."""


@dataclass(frozen=True)
class Extension:
    """An entry point of a package."""

    package: str
    version: str
    entry: EntryPoint

    @property
    def name(self) -> str:
        return self.entry.name

    @cached_property
    def value(self) -> Any:
        """Return the object that the entry point names. The first call imports its package. Raises
        PluginError.
        """
        try:
            return self.entry.load()
        except Exception as error:  # a plug-in may raise anything
            cause = f"{type(error).__name__}: {error}"
            raise PluginError(
                f"the plug-in {self.package} {self.version} can't be loaded ({cause}): "
                f"fix it, or uninstall it with `pip uninstall {self.package}`"
            ) from error

    @property
    def full_name(self) -> str:
        """A name that says which package it takes, in letters that traces may contain."""
        return f"{_plain(self.package)}.v{_plain(self.version)}.{_plain(self.name)}"


@cache
def extensions(group: str) -> tuple[Extension, ...]:
    """Return the entry points of all plug-ins in a group, by name. None is loaded yet."""
    found = [
        Extension(entry.dist.name, entry.dist.version, entry)
        for entry in entry_points(group=group)
        if entry.dist is not None
    ]
    return tuple(sorted(found, key=lambda one: (one.package, one.name)))


def is_plugins(name: str) -> bool:
    """Return whether the full name names a plug-in's extension."""
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
