"""Start a module in a sandbox.

    python -P -m compiler.children.start MODULE PARENT_PID REPORT_FD SCRATCH

Enter the sandbox before loading the module: libraries start threads, and a process with threads can't enter
namespaces. Write a JSON report to the descriptor REPORT_FD: `gaps` lists missing parts of the sandbox,
`failure` says why the module can't be started.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
from pathlib import Path

from sandbox import containment
from sandbox.kinds import COMPILE
from sandbox.privileges import NOBODY


def _main(module: str, parent: str, report: str, scratch: str) -> None:
    with os.fdopen(int(report), "w") as stream:
        try:
            gaps = containment.enter(COMPILE, int(parent), NOBODY, Path(scratch))
        except (SystemExit, OSError) as error:
            json.dump({"failure": str(error)}, stream)
            raise
        json.dump({"gaps": gaps}, stream)
    # Imported objects stay. `serve` collects garbage again.
    gc.disable()
    os.chdir(scratch)
    sys.argv = [module]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
