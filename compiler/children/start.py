"""Start a module in a sandbox.

    python -P -m compiler.children.start MODULE PARENT_PID GAPS_FD SCRATCH

This comes before the module is loaded: a process with threads, which libraries start, can't enter namespaces.
What the sandbox lacks on this machine goes to the descriptor GAPS_FD, a line for each gap.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from sandbox import containment
from sandbox.kinds import COMPILE
from sandbox.privileges import NOBODY


def _main(module: str, parent: str, gaps: str, scratch: str) -> None:
    with os.fdopen(int(gaps), "w") as stream:
        try:
            found = containment.enter(COMPILE, int(parent), NOBODY, Path(scratch))
        except SystemExit as error:
            stream.write(str(error))
            raise
        stream.write("\n".join(found))
    os.chdir(scratch)
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
