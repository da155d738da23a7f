"""A small arm64 Debian under qemu with our worker installed, built once and cached.

Needs root, because it makes a root file system and registers an interpreter for its programs.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests import debian
from tests.debian import CHECKOUT, PYTHON, Unavailable

PACKAGES = "/opt/tunefarm"  # where our packages and their dependencies are in the root
QEMU = "/usr/bin/qemu-aarch64-static"
BINFMT = Path("/proc/sys/fs/binfmt_misc")
# 64-bit little-endian ELF programs and libraries for machine 183. F: opened now, so it works in a chroot too.
FORMAT = (
    r":qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
    r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
    f":{QEMU}:F"
)


def obstacle() -> str | None:
    """Return why no such root can be made here; None if it can."""
    if platform.machine() != "x86_64" or os.geteuid() != 0:
        return "needs root on an x86-64 machine"
    missing = [tool for tool in ("debootstrap", "unshare", QEMU) if shutil.which(tool) is None]
    return (
        f"not installed: {', '.join(missing)} (packages debootstrap, qemu-user-static)" if missing else None
    )


def bare() -> Path:
    """Return the root without our packages on Python's path. Raises Unavailable."""
    _register()
    return debian.make("arm64")


def make() -> Path:
    """Return the root with our worker; its code is always the checkout's. Raises Unavailable."""
    root = bare()
    pinned, pins = Path(f"{root}{PACKAGES}/pinned"), (CHECKOUT / "constraints.txt").read_text()
    if not pinned.exists() or pinned.read_text() != pins:
        shutil.rmtree(f"{root}{PACKAGES}", ignore_errors=True)
        _install(root)
        pinned.write_text(pins)
    for package in ("tunefarm", "core", "system", "sandbox", "search", "compiler", "proto", "worker"):
        target = Path(str(root) + PACKAGES) / package
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(CHECKOUT / package, target, ignore=shutil.ignore_patterns("__pycache__"))
    return root


def start(root: Path, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Run a command in the root, with our packages, in this machine's network."""
    return debian.start(root, command, {"PYTHONPATH": PACKAGES, **environment})


def _register() -> None:
    if not (BINFMT / "register").exists():
        debian.try_(["mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT)])
    if not (BINFMT / "qemu-aarch64").exists():
        try:
            (BINFMT / "register").write_text(FORMAT)
        except OSError as error:
            raise Unavailable(f"no interpreter can be registered: {error}") from error


def _install(root: Path) -> None:
    """Install the worker's dependencies as wheels for arm64, without building or emulation."""
    found = debian.wheels("aarch64", "worker")
    platforms = [
        option
        for tag in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")
        for option in ("--platform", f"{tag}_aarch64")
    ]
    which = ["--python-version", PYTHON, "--implementation", "cp", *platforms, "--only-binary=:all:"]
    files = [str(file) for file in sorted(found.glob("*.whl"))]
    (own,) = (found / "own").glob("tunefarm-*.whl")
    target = Path(str(root) + PACKAGES)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    try:
        debian.run([*pip, *which, "--target", str(target), str(own), *files])
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
