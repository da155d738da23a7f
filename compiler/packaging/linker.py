"""Link shared libraries for this machine and for other architectures."""

from __future__ import annotations

import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from compiler.packaging.elf import ARCHS, elf_arch
from compiler.packaging.large_constants import LargeConstants
from core.library_check import check_library
from sandbox.cache_seed import ZIG_CACHE, seed_name
from system.host_compiler import find_compiler, find_cross_compiler

# The oldest glibc that cross-linked libraries support, as in Debian 10 and Ubuntu 18.10.
GLIBC = "2.28"
LINK_TIMEOUT_S = 300
ZIG = "ziglang"

Link = Callable[..., None]


class LinkerError(Exception):
    """A library can't be linked. The message says why, or what to install."""


def find_linker(triple: str) -> Link:
    """Return a function that links objects into a shared library for an LLVM triple, for TVM's `fcompile`.
    Raises LinkerError without a suitable linker; the returned function raises it if linking fails.
    """
    arch = triple.partition("-")[0]
    compiler = _native_compiler() if arch == platform.machine() else _cross_compiler(arch)

    def link(output: str, objects: Sequence[str], options: Sequence[str] = ()) -> None:
        environment = dict(os.environ)
        if ZIG in compiler:
            environment.setdefault(ZIG_CACHE, str(_private_folder("tunefarm-zig")))
        command = [*compiler, "-shared", "-fPIC", "-o", output, *objects, *options]
        try:
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=LINK_TIMEOUT_S
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise LinkerError(f"{compiler[0]} could not link: {error}") from error
        if done.returncode:
            message = (done.stderr or done.stdout).strip()[-2000:]
            raise LinkerError(f"{compiler[0]} could not link: {message}")

    return link


def zig_cache_folder(arch: str) -> Path | None:
    """Return the folder of zig's cache for an architecture; None if another linker serves it. Raises
    LinkerError.
    """
    found = importlib.util.find_spec(ZIG)
    if found is None or arch in ("", platform.machine()) or find_cross_compiler(arch):
        return None
    parent = os.environ.get(ZIG_CACHE)
    folder = Path(parent) if parent else _private_folder("tunefarm-zig")
    return folder / seed_name(arch)


def link_library(
    executable: Any,
    triple: str,
    link: Link,
    library: Path,
    constants: LargeConstants | None = None,
    objects: Sequence[str] = (),
) -> None:
    """Link a compiled module and `objects` into a shared library for an LLVM triple. `constants` were set
    aside before compilation. Raises LinkerError; SymbolError if the library calls functions that no compiled
    program needs; any exception of TVM's if code generation fails.
    """
    arch = triple.partition("-")[0]

    def write_imports(module: Any, _is_system_lib: bool, _prefix: str, folder: str) -> str:
        path = Path(folder) / "imports.o"
        (constants or LargeConstants()).write_imports(module, arch, path)
        return str(path)

    if arch not in ARCHS:
        raise LinkerError(f"libraries for {arch} can't be linked: only for {' and '.join(ARCHS)}")
    with tempfile.TemporaryDirectory(prefix="tunefarm-") as folder:
        executable.export_library(
            str(library),
            addons=[*objects],
            workspace_dir=folder,
            fcompile=link,
            fpack_imports=write_imports,
        )
    with library.open("rb") as file:
        if elf_arch(file.read(20)) != arch:
            raise LinkerError(
                f"the linker made a library that doesn't run on {triple}: set CC to another one"
            )
        check_library(file)


def _native_compiler() -> list[str]:
    """Return CXX or CC from the environment, or else the first compiler on the PATH. Raises LinkerError."""
    found = find_compiler()
    if found is None:
        raise LinkerError("no C compiler to link the model with: install gcc or clang, or set CC")
    return [found]


def _cross_compiler(arch: str) -> list[str]:
    """Return a cross compiler on the PATH, or zig from the package ziglang. Raises LinkerError."""
    found = find_cross_compiler(arch)
    if found:
        return [found]
    if importlib.util.find_spec(ZIG) is not None:
        return [sys.executable, "-m", ZIG, "cc", "-target", f"{arch}-linux-gnu.{GLIBC}"]
    raise LinkerError(
        f"no compiler to link a model for {arch} with: install tunefarm's extra 'cross', "
        f"or {arch}-linux-gnu-gcc"
    )


def _private_folder(name: str) -> Path:
    """Create a permanent folder below the one for temporary files, writable only by this user. The home
    folder may not be writable. Raises LinkerError.
    """
    folder = Path(tempfile.gettempdir()) / f"{name}-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        owner = folder.lstat().st_uid
    except OSError as error:
        raise LinkerError(f"can't create {folder} ({error.strerror}): set {ZIG_CACHE}") from error
    if folder.is_symlink() or owner != os.getuid():
        raise LinkerError(f"{folder} is not this user's own: remove it, or set {ZIG_CACHE}")
    return folder
