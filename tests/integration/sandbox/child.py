"""Start a kind of child like its real parent does, on a system with more or fewer restrictions. Print JSON.

python child.py KIND SYSTEM JSON
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]


def compile_child(told: dict[str, str]) -> dict[str, Any]:
    from compiler.children.child import run_child

    gaps: list[str] = []

    class Gaps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            gaps.append(record.getMessage())

    logging.getLogger("compiler.children.child").addHandler(Gaps())
    with run_child("compile_attacker", json.dumps(told).encode(), 100.0, 1 << 30) as (reply, status):
        text = reply.read().decode()
    return {"sandbox_gaps": gaps, "status": status, **(json.loads(text) if text else {})}


def worker_child(told: dict[str, str], builds: bool, gpu: bool) -> dict[str, Any]:
    from core.lease import Limits
    from worker.runner.executor import ChildConfig, Executor
    from worker.runner.interface import BuildRequest

    config = ChildConfig(1, "attacking_runner:AttackingRunner", builds=builds, gpu=gpu)
    limits = Limits(build_timeout_s=100.0, run_timeout_s=100.0, memory_bytes=1 << 28)

    async def attack() -> dict[str, Any]:
        executor = Executor(config, os.environ)
        try:
            await executor.start()
            request = BuildRequest("", json.dumps(told), "attack", (), export=builds)
            if builds:
                done = await executor.export(request, limits)
            else:
                done = await executor.measure(request, limits)
            return {"sandbox_gaps": list(executor.sandbox_gaps), **json.loads(getattr(done, "error", ""))}
        finally:
            await executor.close()

    return asyncio.run(attack())


if __name__ == "__main__":
    from tests.integration.worker.sandboxed import enter_system

    kind, system, told = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    enter_system(system)
    told["parent"] = str(os.getpid())
    if kind == "compile child":
        print(json.dumps(compile_child(told)))
    else:
        print(json.dumps(worker_child(told, kind == "builder", "GPU" in kind)))
