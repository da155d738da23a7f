"""Measure candidates of `fault_runner` in a separate process, on a system with more or fewer restrictions.

    python sandboxed.py JSON       prints JSON

`COMMANDS` make the systems.
"""

from __future__ import annotations

import asyncio
import errno
import grp
import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sandbox.kinds import GPU_GROUPS

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
LIMITS: dict[str, Any] = {"build_timeout_s": 60.0, "run_timeout_s": 60.0, "memory_bytes": 1 << 28}
# A user namespace has its own limits, so the kernel really refuses another PID namespace here.
REFUSING = 'echo 0 > /proc/sys/user/max_pid_namespaces && exec "$0" "$@"'
COMMANDS = {
    "as it is": (),
    "no namespaces": ("unshare", "--user", "--map-root-user", "sh", "-c", REFUSING),
    "readable": ("unshare", "--mount"),
    "unprivileged": ("unshare", "--mount"),
    "with a GPU": ("unshare", "--mount"),
    "with a GPU, unprivileged": ("unshare", "--mount"),
    "unprivileged, only Landlock": ("unshare", "--mount"),
    "unprivileged, nothing": ("unshare", "--mount"),
    "root, only Landlock": ("unshare", "--mount"),
}
# The system calls that a filter refuses to the worker and to all that it starts.
REFUSED = {
    "root, only Landlock": ("unshare",),
    "unprivileged, only Landlock": ("unshare",),
    "unprivileged, nothing": ("unshare", "landlock_create_ruleset"),
}
NOBODY = 65534
# Nodes as drivers make them: the group that owns one and its mode. Behind each is the null device.
NODES = {
    "nvidia0": ("root", 0o666),
    "nvidiactl": ("root", 0o666),
    "nvidia-uvm": ("root", 0o666),
    "dri/card0": ("video", 0o660),
    "dri/renderD128": ("render", 0o660),
    "kfd": ("render", 0o660),
    "nvmap": ("video", 0o660),
    "nvhost-ctrl-gpu": ("video", 0o660),
    "another": ("root", 0o660),
}
KEPT_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm")


def measured(
    system: str,
    traces: Sequence[str],
    module_json: str = "",
    user: str = "nobody",
    runner: str = "fault_runner:FaultRunner",
    shared: Sequence[str] = (),
) -> Any:
    """Measure a candidate for each trace, which may write the folders `shared`.

    Return the "sandbox_gaps", the device's "triple", and the candidates' "errors".
    """
    request = {"system": system, "traces": traces, "module_json": module_json, "user": user, "runner": runner}
    request["shared"] = shared
    command = [*COMMANDS[system], sys.executable, str(Path(__file__)), json.dumps(request)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE)])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def works(system: str) -> bool:
    """Return whether this machine can make such a system."""
    tried = [*COMMANDS[system], "true"]
    if "unprivileged" in system:
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
    """Replace the folders that keep other users from this Python by ones that hold nothing but Python."""
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


def _add_devices() -> None:
    """Give this process a /dev of its own, with the device files of a machine that has GPUs."""
    before = Path(tempfile.mkdtemp())
    subprocess.run(["mount", "--rbind", "/dev", before], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "none", "/dev"], check=True)
    for name in KEPT_DEVICES:
        place = Path("/dev", name)
        place.mkdir() if (before / name).is_dir() else place.touch()
        subprocess.run(["mount", "--rbind", before / name, place], check=True)
    Path("/dev/fd").symlink_to("/proc/self/fd")
    for name, (group, mode) in NODES.items():
        node = Path("/dev", name)
        node.parent.mkdir(exist_ok=True)
        os.mknod(node, stat.S_IFCHR, os.makedev(1, 3))
        os.chown(node, 0, group_id(group))
        node.chmod(mode)


def _refuse(calls: Sequence[str]) -> None:
    import pyseccomp

    rules = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for call in calls:
        rules.add_rule(pyseccomp.ERRNO(errno.EPERM), call)
    if calls:
        rules.load()


def group_id(name: str) -> int:
    """Return a group's id; one that no group has where there is no such group."""
    return grp.getgrnam(name).gr_gid if has_group(name) else 4711


def has_group(name: str) -> bool:
    return name in {group.gr_name for group in grp.getgrall()}


async def _measure(request: dict[str, Any]) -> dict[str, Any]:
    from core.lease import Limits
    from worker.runner.executor import ChildConfig, Executor
    from worker.runner.interface import BuildRequest

    shared = tuple(map(Path, request["shared"]))
    has_gpu = "GPU" in request["system"]
    config = ChildConfig(2, request["runner"], user=request["user"], gpu=has_gpu, writable=shared)
    executor = Executor(config, os.environ)
    errors = []
    try:
        device = await executor.start()
        for trace in request["traces"]:
            candidate = BuildRequest("", request["module_json"], trace, ())
            errors.append((await executor.measure(candidate, Limits(**LIMITS))).error)
    finally:
        await executor.close()
    return {"sandbox_gaps": executor.sandbox_gaps, "triple": device.triple, "errors": errors}


def enter_system(system: str) -> None:
    """Make this process part of such a system. `COMMANDS[system]` has started it."""
    if system in ("readable", "root, only Landlock") or "unprivileged" in system or "GPU" in system:
        _make_readable()
    if "GPU" in system:
        _add_devices()
    if "unprivileged" in system:
        given = filter(has_group, GPU_GROUPS if "GPU" in system else ())
        os.setgroups([group_id(name) for name in given])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    _refuse(REFUSED.get(system, ()))


if __name__ == "__main__":
    wanted = json.loads(sys.argv[1])
    enter_system(wanted["system"])
    print(json.dumps(asyncio.run(_measure(wanted))))
