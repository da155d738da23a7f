"""The version of tunefarm that runs here."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def installed_version(package: str = "tunefarm") -> str:
    """Return the version of an installed package; "" if it isn't installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
