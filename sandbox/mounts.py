"""Mount a file system for a process with only the files that it needs."""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

from sandbox.files import VisibleFiles
from system import linux

_TMPFS = "tmpfs"
_SHARED_MEMORY_BYTES = 64 << 20
_DEV_LINKS = {
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}

# Constants of <sys/mount.h>, <sched.h> and <linux/mount.h>.
_CLONE_NEWNS = 0x00020000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 1, 2, 4, 8
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_MNT_DETACH = 2
_MOUNT_SETATTR = 442
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTR_RDONLY = 1
_MAX_LINKS = 40

# No child needs them, and TVM reads all symbols at its first error, which takes a quarter of a second.
DEBUG_SYMBOLS = Path("/usr/lib/debug")


def mount_only(files: VisibleFiles, fresh_proc: bool) -> None:
    """Mount a file system for this process with these files and folders, /proc, /sys and a small /dev.

    Needs the right to mount, which may be dropped afterwards. With `fresh_proc`, /proc shows only processes
    of this PID namespace, if the kernel allows that. Every user may enter the folders above visible ones,
    even if their modes outside forbid it. Raises OSError if the kernel refuses. Then the process must exit,
    because it may see only a part of its files.
    """
    umask = os.umask(0o022)
    linux.call("unshare", _CLONE_NEWNS)
    _mount("none", "/", flags=_MS_REC | _MS_PRIVATE)
    # The new root is mounted over a folder that every system has. It contains the old root until all files
    # are bound.
    _mount(_TMPFS, "/tmp", _TMPFS, _MS_NOSUID | _MS_NODEV, "mode=755,size=16m")
    old = Path("/tmp/.old")
    old.mkdir()
    linux.call("pivot_root", b"/tmp", os.fsencode(old))
    os.chdir("/")
    old = Path("/.old")
    wanted = [(_make_place(old, path), False) for path in (*files.readable, Path("/sys"), *files.devices)]
    wanted += [(_make_place(old, path), True) for path in files.writable]
    bound: dict[Path, bool] = {}  # which are writable
    for place, is_writable in sorted((place, kind) for place, kind in wanted if place is not None):
        around = next((one for one in (place, *place.parents) if one in bound), None)
        if around is None or bound[around] is not is_writable:
            _bind(old, place, is_writable)
            bound[place] = is_writable
    if DEBUG_SYMBOLS.is_dir():
        _mount(_TMPFS, str(DEBUG_SYMBOLS), _TMPFS, _MS_NOSUID | _MS_NODEV | _MS_RDONLY)
    _fill_dev()
    Path("/proc").mkdir()
    try:
        if not fresh_proc:
            raise PermissionError
        _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    except OSError:
        _mount(str(old / "proc"), "/proc", flags=_MS_BIND | _MS_REC)
    # Even root without capabilities could write settings of the kernel there, such as core_pattern.
    _make_readonly(Path("/proc"), recursive=True)
    linux.call("umount2", os.fsencode(old), _MNT_DETACH)
    old.rmdir()
    _make_readonly(Path("/"), recursive=False)
    os.umask(umask)


def _fill_dev() -> None:
    """Add the other parts of /dev that programs expect, without terminals."""
    Path("/dev/shm").mkdir(parents=True)
    _mount(_TMPFS, "/dev/shm", _TMPFS, _MS_NOSUID | _MS_NODEV, f"mode=1777,size={_SHARED_MEMORY_BYTES}")
    for name, target in _DEV_LINKS.items():
        Path("/dev", name).symlink_to(target)


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
    """Create the folders above a path of the old root, and the symbolic links in it. Return the path that
    these lead to.

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
            with contextlib.suppress(FileExistsError):  # another path leads through it, too
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
    """Make a mount read-only; if `recursive`, with all mounts below it."""
    attributes = struct.pack("=4Q", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    linux.syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(path), flags, attributes, len(attributes))
