"""Start a module in a sandbox: without network, and without files but those that the compiler needs.

    python -P -m compiler.sandbox.start MODULE PARENT_PID GAPS_FD SCRATCH [WRITABLE ...]

This comes before the module is loaded: a process with threads, which libraries start, can't enter namespaces.
What the sandbox lacks on this machine goes to the descriptor GAPS_FD, a line for each gap.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from system import isolation
from system.linux import die_with_parent


def _enter(writable: list[Path]) -> list[str]:
    """Restrict this process. Return the gaps."""
    if sys.platform != "linux":
        return ["the compiler isn't contained: only Linux can do that"]
    isolation.limit_files()
    try:
        isolation.unshare_namespaces(processes=False, user=True)
    except OSError:
        has_namespaces = False
    else:
        has_namespaces = True

    def drop_rights() -> None:
        isolation.drop_capabilities()
        isolation.forbid_new_privileges()

    return isolation.restrict_files("the compiler", [], writable, drop_rights, has_namespaces)


def _main(module: str, parent: str, gaps: str, *writable: str) -> None:
    die_with_parent(parent_pid=int(parent))
    found = _enter(list(map(Path, writable)))
    die_with_parent(parent_pid=int(parent))  # again: the kernel may have forgotten it
    with os.fdopen(int(gaps), "w") as stream:
        stream.write("\n".join(found))
    os.chdir(writable[0])
    sys.argv = [module, parent]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
