"""Call CUDA's compilers for many programs at once."""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from compiler.codegen.fragments import KERNELS_START
from compiler.codegen.nvcc import NvccError, compile_cubin
from system.nvcc import find_nvcc


def preamble(source: str) -> str:
    """Return the text before the kernels. Sources with the same preamble can be compiled together."""
    return source[: source.index(KERNELS_START)]


def merged(sources: Sequence[str]) -> str:
    """Join programs with the same preamble to one source. Kernel names get the program's number."""
    bodies = [source[source.index(KERNELS_START) :] for source in sources]
    renamed = [
        re.sub(r"\bmain_kernel", f"program_{number}_main_kernel", body) for number, body in enumerate(bodies)
    ]
    return "\n".join([preamble(sources[0]), *renamed])


def compile_error(sources: Sequence[str], capability: int) -> str:
    """Compile programs with the same preamble; return the compilers' errors, "" if there are none."""
    try:
        compile_cubin(merged(sources), f"sm_{capability}")
    except NvccError as error:
        return str(error)
    return ""


def find_nvdisasm() -> Path | None:
    """Return the disassembler beside nvcc."""
    nvcc = find_nvcc()
    found = nvcc.with_name("nvdisasm") if nvcc is not None else None
    return found if found is not None and found.exists() else None


def instructions(cubin: Path) -> Counter[str]:
    """Count the machine instructions of a cubin, by name without modifiers: HMMA, LDSM, LDGSTS."""
    return Counter(name.partition(".")[0] for name in _names(cubin))


def load_bits(cubin: Path) -> Counter[int]:
    """Count a cubin's loads from global memory by their bits. Asynchronous copies aren't loads."""
    modifiers = [name.split(".") for name in _names(cubin) if name.startswith("LDG.")]
    return Counter(next((int(one) for one in each if one.isdecimal()), 32) for each in modifiers)


def _names(cubin: Path) -> list[str]:
    """Return the names of a cubin's machine instructions with their modifiers, such as LDG.E.128."""
    nvdisasm = find_nvdisasm()
    assert nvdisasm is not None, "nvidia-cuda-nvdisasm is installed"
    text = subprocess.run([nvdisasm, "-c", cubin], capture_output=True, text=True, check=True).stdout
    return re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z0-9][\w.]*)", text, re.MULTILINE)
