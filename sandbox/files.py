"""The files and folders of this machine that a child sees, in addition to its task's files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from sandbox.kinds import ChildKind
from system.host_compiler import compiler_parts
from system.nvcc import find_compiler

# Programs and libraries of the system.
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store")
# Usual folders of software outside of the system: libraries and compilers for GPUs.
SOFTWARE = ("/opt/cuda", "/opt/nvidia", "/opt/rocm", "/opt/amdgpu")
# Settings of programs and libraries. /etc as a whole has secrets.
SETTINGS = (
    *("alternatives", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "ld.so.preload", "localtime", "timezone"),
    *("passwd", "group", "nsswitch.conf", "os-release", "debian_version", "OpenCL", "nv_tegra_release"),
)
# The visible parts of a Python environment (venv, conda), of Python and of CUDA. Other files there may be
# secrets, such as a worker's token beside an installed worker.
ENVIRONMENT_PARTS = (
    *("bin", "include", "lib", "lib32", "lib64", "libexec", "pyvenv.cfg"),
    *("nvvm", "targets", "version.json"),  # of CUDA
)
MODULE_SUFFIXES = (".py", ".pyc", ".so", ".zip", ".egg")
# The depth to which namespace packages are searched for links.
_NAMESPACE_DEPTH = 4


@dataclass(frozen=True)
class VisibleFiles:
    """The files that a child sees: files and folders to read and to write, devices, and folders whose entries
    it may list without reading all of them.
    """

    readable: tuple[Path, ...]
    listed: tuple[Path, ...]
    writable: tuple[Path, ...]
    devices: tuple[Path, ...]

    @classmethod
    def of(
        cls,
        kind: ChildKind,
        environment: Mapping[str, str],
        readable: Iterable[Path],
        writable: Iterable[Path],
    ) -> VisibleFiles:
        """Return the visible files of this kind of child, including its task's files."""
        folders = [Path(os.path.abspath(entry)) for entry in sys.path if entry and os.path.isdir(entry)]
        return cls(
            (*_existing(_needed(environment)), *readable),
            tuple(folders),
            tuple(writable),
            tuple(sorted(path for pattern in kind.devices for path in Path("/dev").glob(pattern))),
        )


def _existing(paths: Iterable[Path]) -> list[Path]:
    """Return the absolute paths of existing files and folders, without duplicates and without the root."""
    absolute = (Path(os.path.abspath(path)) for path in paths)
    return [path for path in dict.fromkeys(absolute) if path != Path("/") and path.exists()]


def _needed(environment: Mapping[str, str]) -> Iterator[Path]:
    """Yield the files and folders that this Python needs, with its packages, and the system's programs."""
    yield from map(Path, (*SYSTEM, *SOFTWARE))
    python = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    yield from (Path("/etc", name) for name in (*SETTINGS, python))
    executable = Path(os.path.realpath(sys.executable))
    prefixes = [Path(sys.prefix), Path(sys.base_prefix), Path(sys.exec_prefix), executable.parents[1]]
    prefixes += [Path(environment[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if environment.get(name)]
    prefixes += [Path(environment["CUDA_HOME"])] if environment.get("CUDA_HOME") else []
    compiler = find_compiler()
    prefixes += [] if compiler is None else [compiler.path.parents[1], compiler.path.resolve().parents[1]]
    parts = [prefix / part for prefix in prefixes for part in ENVIRONMENT_PARTS]
    yield from parts
    yield from _hops(Path(sys.executable))
    yield from _packages(sys.path, [Path(os.path.abspath(part)) for part in (*parts, *map(Path, SYSTEM))])
    private = [*prefixes, Path(os.path.expanduser("~"))]
    for name in ("PATH", "LD_LIBRARY_PATH", "QEMU_LD_PREFIX"):
        for folder in map(Path, filter(None, environment.get(name, "").split(os.pathsep))):
            if not any(path.is_relative_to(os.path.abspath(folder)) for path in private):
                yield folder
    yield from compiler_parts()


def _packages(search_path: Iterable[str], shown: Iterable[Path]) -> Iterator[Path]:
    """Yield what Python can import from its search path, and the targets of links in it."""
    shown = list(shown)
    for entry in (Path(os.path.abspath(entry)) for entry in search_path if entry):
        if not entry.is_dir():
            yield entry
        elif any(entry.is_relative_to(one) for one in shown):
            yield from _link_targets(entry)
        else:
            yield from _importable(entry)
            yield from _link_targets(entry)


def _importable(folder: Path) -> Iterator[Path]:
    """Yield the packages and modules of a folder that is not part of an environment, such as a checkout.

    A folder without modules counts as a package only beside installed packages, where it is a namespace.
    """
    try:
        entries = [one for one in folder.iterdir() if not one.name.startswith(".")]
    except OSError:
        return
    is_installed = any(one.name.endswith(".dist-info") for one in entries)
    for entry in entries:
        if entry.is_dir():
            if is_installed or _has_modules(entry):
                yield entry
        elif entry.suffix in MODULE_SUFFIXES:
            yield entry


def _has_modules(folder: Path) -> bool:
    try:
        return any(entry.name.endswith(MODULE_SUFFIXES) for entry in os.scandir(folder))
    except OSError:
        return False


def _link_targets(folder: Path, inside: Path = Path(), depth: int = _NAMESPACE_DEPTH) -> Iterator[Path]:
    """Yield the targets of links in a folder of packages: uv, conda and Nix link packages, or each of their
    files.

    If every file of a package is a link, the whole package is shown: the link's target up to the package's
    name.
    """
    try:
        entries = list(os.scandir(folder / inside))
    except OSError:
        return
    for entry in entries:
        path = inside / entry.name
        if entry.is_symlink():
            yield from _target(folder, path)
        elif depth and entry.is_dir():
            within = list(os.scandir(entry))
            links = [one for one in within if one.is_symlink()]
            for link in links:
                yield from _target(folder, path / link.name)
            if not links and all(one.is_dir() for one in within):
                yield from _link_targets(folder, path, depth - 1)


def _target(folder: Path, path: Path) -> Iterator[Path]:
    """Yield the paths that show the target of a link in a folder of packages."""
    *hops, target = _hops(folder / path)
    yield from hops
    common = 0
    while common < len(path.parts) - 1 and path.parts[-1 - common] == target.parts[-1 - common]:
        common += 1
    package = target.parents[common - 1] if common else target
    yield package


def _hops(path: Path) -> list[Path]:
    """Return the paths of a chain of links, the last target included."""
    found = [path]
    while found[-1].is_symlink() and len(found) < 40:
        found.append(Path(os.path.abspath(found[-1].parent / os.readlink(found[-1]))))
    return found
