"""The stand-in's nvcc: it calls NVIDIA's nvcc, which checks the source and reports on it. It appends the same
kernels for this CPU to the cubin, where `cuda.cc` loads them.

    python nvcc.py NVCC HEADERS ARGUMENTS...    NVIDIA's nvcc, CUDA's headers, what nvcc was called with
"""

from __future__ import annotations

import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import translate  # type: ignore[import-not-found]  # stands beside this file, wherever both were copied to

# The last byte of ELF's identification, which is padding.
MARKED_BYTE, MARK = 15, b"E"


def main(nvcc: str, headers: str, *arguments: str) -> int:
    done = subprocess.run([nvcc, *arguments])
    if done.returncode or "--cubin" not in arguments:
        return done.returncode
    output, source = Path(arguments[arguments.index("-o") + 1]), Path(arguments[-1])
    cubin = output.read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernels.so"
        if refusal := translate.compile_for_cpu(
            translate.for_cpu(source.read_text()), Path(headers), Path(__file__).parent, library
        ):
            print(f"the stand-in can't emulate this: {refusal}", file=sys.stderr)
            return 1
        code = library.read_bytes()
    marked = cubin[:MARKED_BYTE] + MARK + cubin[MARKED_BYTE + 1 :]
    output.write_bytes(marked + struct.pack("<Q", len(code)) + code)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
