"""Call CUDA's compilers for many programs at once."""

from __future__ import annotations

import re
from collections.abc import Sequence

from compiler.codegen.fragments import KERNELS_START
from compiler.codegen.nvcc import NvccError, compile_cubin


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
