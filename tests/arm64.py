"""A small arm64 Debian that runs here under qemu, with our worker installed: made once, kept in the cache.

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

import platformdirs

CHECKOUT = Path(__file__).parents[1]
# Not in the checkout: tools that walk it had better not meet another system's root.
ROOT = platformdirs.user_cache_path("tunefarm") / "arm64"
PACKAGES = "/opt/tunefarm"  # where ours and what it needs lie in the root
PYTHON = "3.11"
SUITE = "bookworm"  # whose Python that is
QEMU = "/usr/bin/qemu-aarch64-static"
BINFMT = Path("/proc/sys/fs/binfmt_misc")
# 64-bit little-endian ELF programs and libraries for machine 183. F: opened now, so it works in a chroot too.
FORMAT = (
    r":qemu-aarch64:M::\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
    r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
    f":{QEMU}:F"
)
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64")
ENTER = (
    'mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount -t tmpfs tmpfs "$0/tmp"'
    ' && exec chroot "$0" "$@"'
)


class Unavailable(Exception):
    """This machine doesn't allow a root of another architecture; the message says why."""


def obstacle() -> str | None:
    """Return why no such root can be made here, None when it can."""
    if platform.machine() != "x86_64" or os.geteuid() != 0:
        return "needs root on an x86-64 machine"
    missing = [tool for tool in ("debootstrap", "unshare", QEMU) if shutil.which(tool) is None]
    return (
        f"not installed: {', '.join(missing)} (packages debootstrap, qemu-user-static)" if missing else None
    )


def make() -> Path:
    """The root, made now unless an earlier run left it; our own code in it is always the checkout's.

    Raises Unavailable.
    """
    _register()
    finished = ROOT / "finished"
    if not finished.exists():
        shutil.rmtree(ROOT, ignore_errors=True)
        ROOT.parent.mkdir(parents=True, exist_ok=True)
        _unpack()
        _install()
        finished.touch()
    _copy_ours()
    return ROOT


def start(root: Path, command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    """Run a command in the root, in this machine's network."""
    ours = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "PYTHONPATH": PACKAGES}
    return subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", ENTER, str(root), *command],
        env=ours | dict(environment),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _register() -> None:
    if not (BINFMT / "register").exists():
        _try(["mount", "-t", "binfmt_misc", "binfmt_misc", str(BINFMT)])
    if not (BINFMT / "qemu-aarch64").exists():
        try:
            (BINFMT / "register").write_text(FORMAT)
        except OSError as error:
            raise Unavailable(f"no interpreter can be registered: {error}") from error


def _unpack() -> None:
    """Install Python without configuring packages, which would run emulated scripts for minutes."""
    options = ["--arch=arm64", "--variant=minbase", "--include=python3,base-passwd", "--foreign"]
    _try(["debootstrap", *options, SUITE, str(ROOT)])
    for package in sorted((ROOT / "var/cache/apt/archives").glob("*.deb")):
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as files:
            extract = ["tar", "--extract", "--keep-directory-symlink", "--directory", str(ROOT)]
            subprocess.run(extract, stdin=files.stdout, check=True)
    for place in (ROOT / name for name in ("proc", "dev", "tmp")):
        if place.is_symlink():  # to this machine's own
            place.unlink()
        place.mkdir(exist_ok=True)
    for name in ("passwd", "group"):
        shutil.copy(ROOT / f"usr/share/base-passwd/{name}.master", ROOT / "etc" / name)


def _install() -> None:
    """Install the worker's dependencies as wheels for arm64: nothing is built, nothing runs emulated."""
    pip = [sys.executable, "-m", "pip"]
    built = ROOT / "wheels"
    _run([*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(built), str(CHECKOUT)])
    (wheel,) = built.glob("tunefarm-*.whl")
    platforms = [option for name in PLATFORMS for option in ("--platform", name)]
    which = ["--python-version", PYTHON, "--implementation", "cp", *platforms, "--only-binary=:all:"]
    pins = ["--constraint", str(CHECKOUT / "constraints.txt")]
    where = ["--target", str(ROOT) + PACKAGES]
    _run([*pip, "install", "--quiet", *which, *pins, *where, f"{wheel}[worker]"])


def _copy_ours() -> None:
    for package in ("tunefarm", "core", "system", "search", "compiler", "proto", "worker"):
        target = Path(str(ROOT) + PACKAGES) / package
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(CHECKOUT / package, target, ignore=shutil.ignore_patterns("__pycache__"))


def _try(command: Sequence[str]) -> None:
    """Run a command that this machine may refuse. Raises Unavailable."""
    try:
        _run(command)
    except AssertionError as error:
        raise Unavailable(str(error)) from error


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{command[0]} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}"
