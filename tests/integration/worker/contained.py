"""Measures candidates of `fault_bench` in a process of its own: python contained.py JSON prints JSON.

`COMMANDS` start it under systems that differ in what they allow.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
LIMITS = {"build_timeout_s": 60.0, "run_timeout_s": 60.0, "memory_bytes": 1 << 28}
# Within a user namespace its own limits hold: here the kernel really refuses to make another PID namespace.
REFUSING = 'echo 0 > /proc/sys/user/max_pid_namespaces && exec "$0" "$@"'
COMMANDS = {
    "as it is": (),
    "no namespaces": ("unshare", "--user", "--map-root-user", "sh", "-c", REFUSING),
    "readable": ("unshare", "--mount"),
    "unprivileged": ("unshare", "--mount"),
}
NOBODY = 65534


def measured(
    system: str,
    traces: Sequence[str],
    module_json: str = "",
    user: str | None = None,
    bench: str = "fault_bench:FaultBench",
) -> Any:
    """ "gaps" of the containment, the "triple" of the device that was found, and "errors", one of each trace:
    what the candidates had to say."""
    request = {"system": system, "traces": traces, "module_json": module_json, "user": user, "bench": bench}
    command = [*COMMANDS[system], sys.executable, str(Path(__file__)), json.dumps(request)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def works(system: str) -> bool:
    """Whether this machine allows to make such a system."""
    tried = [*COMMANDS[system], "true"]
    if system == "unprivileged":
        tried = [
            "setpriv",
            f"--reuid={NOBODY}",
            f"--regid={NOBODY}",
            "--clear-groups",
            "unshare",
            "-Un",
            "true",
        ]
    return os.geteuid() == 0 and _ends_well(tried)


def _ends_well(command: Sequence[str]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def _make_readable() -> None:
    """Hides the folder that keeps others from this Python, but for Python itself, from this process."""
    needed = [Path(path).resolve() for path in (sys.base_prefix, sys.prefix, ROOT)]
    closed = [each for path in needed for each in path.parents if not each.stat().st_mode & 0o001]
    for folder in dict.fromkeys(closed):
        kept = [path for path in dict.fromkeys(needed) if path.is_relative_to(folder)]
        aside = [tempfile.mkdtemp() for _ in kept]
        for path, place in zip(kept, aside, strict=True):
            subprocess.run(["mount", "--bind", path, place], check=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", folder], check=True)
        for path, place in zip(kept, aside, strict=True):
            path.mkdir(parents=True, exist_ok=True)
            subprocess.run(["mount", "--bind", place, path], check=True)


async def _measure(request: dict[str, Any]) -> dict[str, Any]:
    from proto.values import Limits
    from worker.bench import Subject
    from worker.executor import ChildConfig, Executor

    executor = Executor(ChildConfig(2, request["bench"], user=request["user"]), os.environ)
    errors = []
    try:
        device = await executor.start()
        for trace in request["traces"]:
            subject = Subject("", request["module_json"], trace, ())
            errors.append((await executor.measure(subject, Limits(**LIMITS))).error)
    finally:
        await executor.close()
    return {"gaps": executor.gaps, "triple": device.triple, "errors": errors}


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    if wanted["system"] in ("readable", "unprivileged"):
        _make_readable()
    if wanted["system"] == "unprivileged":
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    print(json.dumps(asyncio.run(_measure(wanted))))
