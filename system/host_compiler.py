"""Find the C compilers of this machine, and the folders that they need."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from pathlib import Path

COMPILERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")
# The processor architectures that a cross compiler on the path can link models for.
CROSS_ARCHS = ("x86_64", "aarch64")
_ANSWER_TIMEOUT_S = 20.0


def find_compiler() -> str | None:
    """Return the path of the compiler that CXX or CC names, otherwise of the first one on the PATH."""
    wanted = [os.environ[key] for key in ("CXX", "CC") if os.environ.get(key)]
    return next(filter(None, map(shutil.which, (*wanted, *COMPILERS))), None)


def find_cross_compiler(arch: str) -> str | None:
    """Return the path of GCC for a processor architecture, named as in an LLVM triple; None without one."""
    return shutil.which(f"{arch}-linux-gnu-gcc")


def compiler_parts() -> list[Path]:
    """Return the files and folders that this machine's compilers need, as the compilers report them."""
    cross = [find_cross_compiler(arch) for arch in CROSS_ARCHS if arch != platform.machine()]
    found = [path for path in (find_compiler(), *cross) if path is not None]
    return [part for compiler in found for part in (Path(compiler), *_parts(compiler))]


def _parts(compiler: str) -> list[Path]:
    """Return where a compiler finds its programs, libraries and headers."""
    named = _ask(compiler, "-print-sysroot").splitlines()
    for line in _ask(compiler, "-print-search-dirs").splitlines():
        _, _, paths = line.partition(":")
        named += paths.strip().removeprefix("=").split(os.pathsep)
    named += _ask(compiler, "-print-resource-dir").splitlines()  # of Clang
    # GCC writes paths such as /opt/gcc/lib/gcc/x86_64-linux-gnu/12/../../../../lib64.
    folders = dict.fromkeys(Path(os.path.realpath(path)) for path in named if os.path.isabs(path))
    return [folder for folder in folders if folder.is_dir() and folder != Path("/")]


def _ask(compiler: str, question: str) -> str:
    try:
        done = subprocess.run(
            [compiler, question], capture_output=True, text=True, timeout=_ANSWER_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return ""
    return done.stdout if done.returncode == 0 else ""
