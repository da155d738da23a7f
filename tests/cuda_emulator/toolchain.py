"""CUDA's compilers, which need no GPU: CUDA C to PTX by nvcc, PTX to machine code by ptxas."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

KERNELS_START = 'extern "C"'


def missing() -> str:
    """Empty, or which compiler is not installed."""
    absent = [name for name in ("nvcc", "ptxas") if shutil.which(name) is None]
    return f"{' and '.join(absent)} not installed" if absent else ""


def preamble(source: str) -> str:
    """What stands before the kernels: sources with the same one can be compiled together."""
    return source[: source.index(KERNELS_START)]


def merged(sources: Sequence[str]) -> str:
    """Programs with one preamble as one source, the kernels of each named after its number."""
    bodies = [source[source.index(KERNELS_START) :] for source in sources]
    renamed = [
        re.sub(r"\bmain_kernel", f"program_{number}_main_kernel", body) for number, body in enumerate(bodies)
    ]
    return "\n".join([preamble(sources[0]), *renamed])


def compile_error(sources: Sequence[str], capability: int, folder: Path) -> str:
    """Compiles programs with one preamble; empty, or what the compilers say."""
    path = folder / "batch.cu"
    path.write_text(merged(sources))
    ptx, cubin = path.with_suffix(".ptx"), path.with_suffix(".cubin")
    commands = [
        ["nvcc", "--ptx", "-O3", "-diag-suppress=177", f"-arch=compute_{capability}", "-o", ptx, path],
        ["ptxas", f"-arch=sm_{capability}", "-o", cubin, ptx],
    ]
    for command in commands:
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
        if done.returncode:
            return f"{command[0]}: {(done.stdout + done.stderr)[:2000]}"
    return ""
