"""Fill a cross linker's cache in a child process without untrusted input."""

from __future__ import annotations

import json
import logging
from typing import Any, BinaryIO

from compiler.children.child import BASE_MEMORY_BYTES, describe_exit, run_child, serve
from compiler.measuring.builder import check_export
from compiler.packaging.linker import LinkerError, zig_cache_folder
from sandbox.cache_seed import CacheSeed

FILL_S = 300.0

_log = logging.getLogger(__name__)


def linker_seed(target: str) -> CacheSeed | None:
    """Return the folder from which linkers' caches for a target are copied; None if no linker needs a cache.
    The first call for an architecture takes half a minute. If it fails, each link repeats that work.
    """
    arch = _arch(target)
    try:
        folder = zig_cache_folder(arch)
    except LinkerError as error:
        _log.warning("the linker's cache can't be kept: %s", error)
        return None
    if folder is None:
        return None
    seed = CacheSeed(folder)
    if not seed.is_filled:
        request = json.dumps({"arch": arch, "memory_bytes": BASE_MEMORY_BYTES}).encode()
        filler = run_child(
            *("compiler.children.linking", request, FILL_S, BASE_MEMORY_BYTES), seed=seed, fills_seed=True
        )
        with filler as (_, status):
            if status != 0:
                end = "took too long" if status is None else describe_exit(status)
                _log.warning("the linker for %s %s: each link will take longer", arch, end)
    return seed


def _arch(target: str) -> str:
    """Return the architecture in a target's LLVM triple; "" without a triple."""
    fields: Any = json.loads(target)
    host = fields.get("host", fields)
    return str(host.get("mtriple", "")).partition("-")[0]


# The child's side


def _answer(request: dict[str, Any], _: BinaryIO) -> None:
    check_export(request["arch"])


if __name__ == "__main__":
    serve(_answer)
