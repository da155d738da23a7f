"""Find nodes in TIR."""

from __future__ import annotations

from typing import Any

import tvm_ffi


def find_all(expression: Any, *kinds: type) -> list[Any]:
    """Return every node of one of these kinds below `expression`, inner ones first."""
    found: list[Any] = []
    tvm_ffi.structural_walk(expression, [(kind, found.append) for kind in kinds])
    return found
