"""The packages that an embedded stack needs. Imports only the standard library."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator
from importlib import metadata

# The packages of this repository that a stack's processes import.
ROOMS = (
    *("tunefarm", "server", "scheduler", "worker", "records", "proto", "compiler", "search", "sandbox"),
    *("system", "core"),
)
EXTRAS = ("cli", "tvm", "server", "scheduler", "worker")
_NAME = re.compile(r"[\w.-]+")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([\w-]+)['"]""")
# Conditions that hold on Linux with CPython; a requirement with another condition may be absent.
_HOLDS = re.compile(r"""(sys_platform\s*==\s*['"]linux|platform_python_implementation\s*!=\s*['"]PyPy)['"]""")


def missing_packages() -> list[str]:
    """Return the names of the packages that this Python lacks, of this repository's and of all that those
    require."""
    missing = {name for name in ROOMS if importlib.util.find_spec(name) is None}
    missing |= {name for name in required_packages() if not _is_installed(name)}
    return sorted(missing)


def required_packages() -> set[str]:
    """Return the names of tunefarm and of all packages that it requires, as far as these are installed."""
    seen: set[str] = set()
    pending = ["tunefarm"]
    while pending:
        name = pending.pop()
        if name not in seen and _is_installed(name):
            pending += _required(metadata.requires(name) or [], EXTRAS if name == "tunefarm" else ())
        seen.add(name)
    return seen


def _is_installed(name: str) -> bool:
    try:
        metadata.requires(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _required(requirements: list[str], extras: tuple[str, ...]) -> Iterator[str]:
    """Yield the names of the packages that are needed with these extras."""
    for requirement in requirements:
        _, _, condition = requirement.partition(";")
        extra = _EXTRA.search(condition)
        if extra is not None and extra[1] not in extras:
            continue
        others = _HOLDS.sub("", _EXTRA.sub("", condition)).replace("and", "").strip(" ()")
        name = _NAME.match(requirement)
        if not others and name is not None:
            yield name[0].lower()
