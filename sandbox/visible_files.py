"""Restrict a process, and what it starts, to the files that it needs: by mounts, or by Landlock.

Mounts are the stronger of the two: what isn't needed isn't there. Landlock needs no rights and no namespaces,
so that it works in containers, but it knows neither sockets nor the times and modes of files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from system import linux

# Programs and libraries of the system.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
# Software that is no part of the system, by its usual places: GPUs' libraries and compilers.
SOFTWARE = ("/opt/cuda", "/opt/nvidia", "/opt/rocm", "/opt/amdgpu")
# Settings of programs and libraries. /etc as a whole has secrets.
SETTINGS = (
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "localtime", "timezone"),
    *("passwd", "group", "nsswitch.conf", "os-release", "debian_version", "OpenCL", "nv_tegra_release"),
)
_TMPFS = "tmpfs"
_SHARED_MEMORY = "/dev/shm"
_SHARED_MEMORY_BYTES = 64 << 20

# Constants of <sys/mount.h>, <sched.h> and <linux/mount.h>.
_CLONE_NEWNS = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MNT_DETACH = 2
_MOUNT_SETATTR = 442
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTR_RDONLY = 1
_MAX_LINKS = 40

# Constants of <linux/landlock.h>.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULESET_VERSION = 1
_PATH_BENEATH = 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
# All rights to files by the version of Landlock: the last entry holds for later versions too.
_ALL_RIGHTS = ((1 << 13) - 1, (1 << 14) - 1, (1 << 15) - 1, (1 << 15) - 1, (1 << 16) - 1)
_NET_VERSION, _SCOPE_VERSION = 4, 6
_BIND_AND_CONNECT_TCP = 3
_ABSTRACT_SOCKETS_AND_SIGNALS = 3


def needed_files(environment: Mapping[str, str]) -> list[Path]:
    """Return the files and folders that this Python needs, with its packages, and the system's programs."""
    python = (sys.prefix, sys.base_prefix, sys.exec_prefix, str(Path(sys.executable).resolve().parents[1]))
    named = [
        environment[name] for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_HOME") if name in environment
    ]
    for name in ("PATH", "LD_LIBRARY_PATH", "QEMU_LD_PREFIX"):
        named += environment.get(name, "").split(os.pathsep)
    for name in ("CC", "CXX"):
        compiler = shutil.which(environment.get(name, ""))
        named += [] if compiler is None else [compiler, str(Path(compiler).resolve())]
    settings = [f"/etc/{name}" for name in (*SETTINGS, f"python{sys.version_info[0]}.{sys.version_info[1]}")]
    found = [*SYSTEM, *SOFTWARE, *settings, *python, *sys.path, *named]
    paths = (Path(os.path.abspath(path)) for path in found if path)
    return [path for path in dict.fromkeys(paths) if path != Path("/") and os.path.exists(path)]


def mount_only(readable: Iterable[Path], writable: Iterable[Path], fresh_proc: bool) -> None:
    """Give this process a file system that holds nothing but these files and folders, /proc, /sys and /dev.

    Needs the right to mount, which may be dropped afterwards. With `fresh_proc`, /proc shows the processes of
    this PID namespace only, where the kernel allows that. Raises OSError where the kernel refuses; then the
    process must end, since it may see half of its files: `can_mount` tries it in another one.
    """
    linux.call("unshare", _CLONE_NEWNS)
    _mount("none", "/", flags=_MS_REC | _MS_PRIVATE)
    # The new root is mounted over a folder that every system has, and holds the old one until all is bound.
    _mount(_TMPFS, "/tmp", _TMPFS, _MS_NOSUID | _MS_NODEV, "mode=755,size=4m")
    old = Path("/tmp/.old")
    old.mkdir()
    linux.call("pivot_root", b"/tmp", os.fsencode(old))
    os.chdir("/")
    old = Path("/.old")
    wanted = [(_make_place(old, path), False) for path in (*readable, Path("/sys"), Path("/dev"))]
    wanted += [(_make_place(old, path), True) for path in writable]
    bound: dict[Path, bool] = {}  # which are writable
    for place, is_writable in sorted((place, kind) for place, kind in wanted if place is not None):
        around = next((one for one in (place, *place.parents) if one in bound), None)
        if around is None or bound[around] is not is_writable:
            _bind(old, place, is_writable)
            bound[place] = is_writable
    if os.path.isdir(_SHARED_MEMORY):
        options = f"mode=1777,size={_SHARED_MEMORY_BYTES}"
        _mount(_TMPFS, _SHARED_MEMORY, _TMPFS, _MS_NOSUID | _MS_NODEV, options)
    Path("/proc").mkdir()
    try:
        if not fresh_proc:
            raise PermissionError
        _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    except OSError:
        _mount(str(old / "proc"), "/proc", flags=_MS_BIND | _MS_REC)
    linux.call("umount2", os.fsencode(old), _MNT_DETACH)
    old.rmdir()
    _make_readonly(Path("/"), recursive=False)


def can_mount(readable: Iterable[Path], writable: Iterable[Path], fresh_proc: bool) -> None:
    """Try `mount_only` in a process of its own. Raises OSError where it would."""
    child = os.fork()
    if child == 0:
        try:
            mount_only(readable, writable, fresh_proc)
            os._exit(0)
        except OSError as error:
            os._exit(error.errno or 1)
        finally:
            os._exit(1)
    number = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if number:
        raise OSError(number, os.strerror(number) if number > 0 else "it died")


def landlock(readable: Iterable[Path], writable: Iterable[Path]) -> None:
    """Have the kernel refuse this process all files but these, those in /proc and /sys, and devices.

    Other processes can't be traced, nor signalled where the kernel is new enough. This process must have
    called `forbid_new_privileges`. Raises OSError where the kernel has no Landlock.
    """
    version = linux.syscall(_CREATE_RULESET, None, 0, _RULESET_VERSION)
    rights = _ALL_RIGHTS[min(version, len(_ALL_RIGHTS)) - 1]
    fields = [rights]
    if version >= _NET_VERSION:
        fields.append(_BIND_AND_CONNECT_TCP)
    if version >= _SCOPE_VERSION:
        fields.append(_ABSTRACT_SOCKETS_AND_SIGNALS)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = linux.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    try:
        names = [name for name in os.listdir("/dev") if name not in ("shm", "mqueue")]
        devices = [path for path in (Path("/dev", name) for name in names) if not path.is_symlink()]
        rules = [
            *((path, _READ) for path in (*readable, Path("/proc"), Path("/sys"))),
            *((path, _READ | _WRITE_FILE | _IOCTL_DEV) for path in devices),
            *((path, rights) for path in writable),
        ]
        for path, allowed in rules:
            with contextlib.suppress(FileNotFoundError, PermissionError):
                _allow(ruleset, path, allowed & rights)
        linux.syscall(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _bind(old: Path, place: Path, is_writable: bool) -> None:
    """Bind a file or folder of the old root to the same place."""
    source = old / place.relative_to("/")
    if source.is_dir():
        place.mkdir(exist_ok=True)
    elif not place.exists():
        place.touch()
    _mount(str(source), str(place), flags=_MS_BIND | _MS_REC)
    if not is_writable:
        _make_readonly(place, recursive=True)


def _make_place(old: Path, path: Path) -> Path | None:
    """Make the folders above a path of the old root, and the symbolic links in it; return where these lead.

    Return None if nothing is there.
    """
    place, rest, links = Path("/"), list(path.parts[1:]), 0
    while rest:
        if place != Path("/") and not place.exists():
            place.mkdir()
        name = rest.pop(0)
        if name == "..":
            place = place.parent
            continue
        source = old / place.relative_to("/") / name
        if source.is_symlink():
            links += 1
            target = os.readlink(source)
            with contextlib.suppress(FileExistsError):  # another path leads through it
                (place / name).symlink_to(target)
            if links > _MAX_LINKS:
                return None
            place = Path("/") if target.startswith("/") else place
            rest = [part for part in target.split("/") if part not in ("", ".")] + rest
        elif source.exists():
            place /= name
        else:
            return None
    return place


def _mount(source: str, target: str, kind: str | None = None, flags: int = 0, data: str = "") -> None:
    linux.call(
        "mount",
        os.fsencode(source),
        os.fsencode(target),
        None if kind is None else kind.encode(),
        flags,
        data.encode() or None,
    )


def _make_readonly(path: Path, recursive: bool) -> None:
    """Make a mount read-only, with all mounts below it if asked to."""
    attributes = struct.pack("=4Q", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    linux.syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, attributes, len(attributes))


def _allow(ruleset: int, path: Path, rights: int) -> None:
    """Add a rule that allows these rights on a file, or on all that is in a folder."""
    opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not path.is_dir():
            rights &= _OF_FILES
        rule = struct.pack("=Qi", rights, opened)
        linux.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(opened)
