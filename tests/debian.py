"""Small Debian systems of this and of another architecture, unpacked beside this one and entered by chroot.

Needs root, because it makes root file systems.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import requires
from pathlib import Path

import platformdirs

from server.install.worker_archive import wheel_of

CHECKOUT = Path(__file__).parents[1]
# Not in the checkout, whose tools should not find another system's root.
CACHE = platformdirs.user_cache_path("tunefarm")
PYTHON = "3.11"
SUITE = "bookworm"  # the release's Python
INCLUDED = "python3-venv,base-passwd"
OPTIONS = ("--variant=minbase", f"--include={INCLUDED}")


class Unavailable(Exception):
    """This machine doesn't allow such a root. The message says why."""


def make(architecture: str, *, configured: bool = False) -> Path:
    """Return a root of this Debian architecture, made now unless it is cached. Raises Unavailable. apt-get
    works only in a `configured` root, which must have this machine's architecture.
    """
    root = CACHE / f"debian-{architecture}{'-configured' if configured else ''}"
    finished = root / "finished"
    if not finished.exists() or finished.read_text() != INCLUDED:
        shutil.rmtree(root, ignore_errors=True)
        root.parent.mkdir(parents=True, exist_ok=True)
        if configured:
            try_(["debootstrap", f"--arch={architecture}", *OPTIONS, SUITE, str(root)])
        else:
            _unpack(root, architecture)
        finished.write_text(INCLUDED)
    return root


def wheels(machine: str, extras: str, *others: str) -> Path:
    """Return a folder with the wheels of extras and other packages for an architecture. Download them unless
    they are cached.
    """
    folder = CACHE / f"wheels-{machine}-{extras}"
    pins = CHECKOUT / "constraints.txt"
    needed = "\n".join([*others, *(requires("tunefarm") or ()), pins.read_text()])
    finished = folder / "finished"
    if not finished.exists() or finished.read_text() != needed:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        pip = [sys.executable, "-m", "pip"]
        name, content = wheel_of("tunefarm")
        (folder / "own").mkdir()
        own = folder / "own" / name
        own.write_bytes(content)
        tags = ("manylinux_2_28", "manylinux_2_27", "manylinux_2_17", "manylinux2014")
        platforms = [option for tag in tags for option in ("--platform", f"{tag}_{machine}")]
        which = ["--python-version", PYTHON, "--implementation", "cp", *platforms, "--only-binary=:all:"]
        constraint = ["--constraint", str(pins)]
        run(
            [
                *pip,
                "download",
                "--quiet",
                *which,
                *constraint,
                "--dest",
                str(folder),
                f"{own}[{extras}]",
                *others,
            ]
        )
        for left in folder.glob("tunefarm-*.whl"):
            left.unlink()
        finished.write_text(needed)
    return folder


def start(
    root: Path,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    bound: Mapping[str, Path] | None = None,
    read_only: bool = False,
) -> subprocess.Popen[str]:
    """Run a command in the root, in this machine's network, with folders of this machine `bound` to paths."""
    ours = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp"}
    steps = ['mount --bind "$0" "$0"', 'mount -o remount,bind,ro "$0"'] if read_only else []
    steps += ['mount -t proc proc "$0/proc"', 'mount --rbind /dev "$0/dev"', 'mount -t tmpfs tmpfs "$0/tmp"']
    for path, folder in (bound or {}).items():
        steps.append(f'mount --bind {shlex.quote(str(folder))} "$0"{shlex.quote(path)}')
    return subprocess.Popen(
        [
            "unshare",
            "--mount",
            "sh",
            "-c",
            " && ".join([*steps, 'exec chroot "$0" "$@"']),
            str(root),
            *command,
        ],
        env=ours | dict(environment),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def try_(command: Sequence[str]) -> None:
    """Run a command that this machine may refuse. Raises Unavailable."""
    try:
        run(command)
    except AssertionError as error:
        raise Unavailable(str(error)) from error


def run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{command[0]} failed: {done.stdout[-2000:]}{done.stderr[-2000:]}"


def _unpack(root: Path, architecture: str) -> None:
    """Install Python without configuring packages: emulated, their scripts would take minutes."""
    try_(["debootstrap", f"--arch={architecture}", *OPTIONS, "--foreign", SUITE, str(root)])
    for package in sorted((root / "var/cache/apt/archives").glob("*.deb")):
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as files:
            extract = ["tar", "--extract", "--keep-directory-symlink", "--directory", str(root)]
            subprocess.run(extract, stdin=files.stdout, check=True)
    for place in (root / name for name in ("proc", "dev", "tmp")):
        if place.is_symlink():  # to this machine's own
            place.unlink()
        place.mkdir(exist_ok=True)
    for name in ("passwd", "group"):
        shutil.copy(root / f"usr/share/base-passwd/{name}.master", root / "etc" / name)
