"""Packages that our processes don't load, although they are installed."""

from __future__ import annotations

import sys

TORCH = "torch"


def keep_out(package: str) -> None:
    """Hide a package from `import` and `importlib.util.find_spec` in this process.

    TVM imports PyTorch wherever it is installed, which takes seconds and, with CUDA, gigabytes of addresses.
    """
    sys.modules.setdefault(package, None)  # type: ignore[arg-type]


def let_in(package: str) -> None:
    """Have `import` find the package again."""
    if package in sys.modules and sys.modules[package] is None:
        del sys.modules[package]
