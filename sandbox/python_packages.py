"""Hide installed packages that our processes must not load."""

from __future__ import annotations

import sys

TORCH = "torch"


def keep_out(package: str) -> None:
    """Hide a package from `import` and `importlib.util.find_spec` in this process.

    TVM imports an installed PyTorch, which takes seconds and, with CUDA, gigabytes of address space.
    """
    sys.modules.setdefault(package, None)  # type: ignore[arg-type]


def let_in(package: str) -> None:
    """Let `import` find the package again."""
    if package in sys.modules and sys.modules[package] is None:
        del sys.modules[package]
