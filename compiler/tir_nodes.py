"""Find nodes in TIR, and name their operators."""

from __future__ import annotations

from typing import Any

import tvm_ffi


def find_all(expression: Any, *kinds: type) -> list[Any]:
    """Return every node of one of these kinds below `expression`, inner ones first."""
    found: list[Any] = []
    tvm_ffi.structural_walk(expression, [(kind, found.append) for kind in kinds])
    return found


def op_name(call: Any) -> str:
    """Return the operator's name without its dialect: TVM registers some operators in several."""
    return str(getattr(call.op, "name", call.op)).rpartition(".")[2]
