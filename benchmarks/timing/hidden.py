"""ONNX Runtime on a processor that seems to have fewer instruction sets than it has.

Its kernels are chosen by what the CPUID instruction says, and nothing else: it has no switch. So a copy of it
is made in which CPUID is replaced by bytes that are no instruction; the kernel of the system calls us instead
(cpuid.c), and we answer for the processor.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

CPUID, MARK = b"\x0f\xa2", b"\x06\xa2"  # what cpuid.c looks for
SOURCE = Path(__file__).with_name("cpuid.c")
# What of LLVM's features can be hidden: with everything that builds on it.
HIDES_AVX: dict[tuple[str, ...], bool] = {("avx512f",): False, ("avx",): True}


@dataclass(frozen=True)
class Hidden:
    """A copy of the package `onnxruntime` in `folder`, and the library that answers it."""

    folder: Path
    answers: Path
    hides_avx: bool

    def prepare(self) -> None:
        """For a process that has not imported the package yet: it gets the copy."""
        if "onnxruntime" in sys.modules:
            raise RuntimeError("ONNX Runtime is loaded already, and knows its processor")
        if ctypes.CDLL(str(self.answers)).tunefarm_hide(int(self.hides_avx)):
            raise RuntimeError("the process can't answer for the processor: no handler of SIGILL")
        sys.path.insert(0, str(self.folder))

    def check(self) -> None:
        """Raises RuntimeError when the package asked the processor itself: then nothing was hidden."""
        if not ctypes.CDLL(str(self.answers)).tunefarm_cpuid_asked():
            raise RuntimeError("ONNX Runtime didn't ask us what the processor can do: nothing is hidden")


def onnxruntime_without(features: Sequence[str], folder: Path) -> Hidden:
    """Makes the copy, about 70 MB. Raises RuntimeError where that can't be done."""
    hides_avx = HIDES_AVX.get(tuple(features))
    spec = importlib.util.find_spec("onnxruntime")
    if hides_avx is None or spec is None or spec.origin is None:
        raise RuntimeError(f"ONNX Runtime can't be told that the processor has no {', '.join(features)}")
    package = folder / "hidden" / "onnxruntime"
    shutil.copytree(Path(spec.origin).parent, package)
    for library in package.glob("capi/onnxruntime_pybind11_state*.so"):
        replace_cpuid(library)
    return Hidden(package.parent, compile_answers(folder / "hidden"), hides_avx)


def compile_answers(folder: Path) -> Path:
    """What answers for the processor, as a shared library. Raises RuntimeError without a C compiler."""
    library = folder / "cpuid.so"
    _run("cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(SOURCE))
    return library


def replace_cpuid(library: Path) -> None:
    """Marks each CPUID of a shared library. Bytes alone don't tell: they may be a part of something else.

    Raises RuntimeError where there is none.
    """
    listing = _run("objdump", "--disassemble", "--no-show-raw-insn", str(library))
    addresses = [int(found, 16) for found in re.findall(r"^\s*([0-9a-f]+):\s+cpuid\b", listing, re.MULTILINE)]
    headers = re.findall(
        r"^\s*\d+ \S+\s+([0-9a-f]+)\s+([0-9a-f]+)\s+[0-9a-f]+\s+([0-9a-f]+)",
        _run("objdump", "--section-headers", str(library)),
        re.MULTILINE,
    )
    sections = [tuple(int(number, 16) for number in header) for header in headers]
    data = bytearray(library.read_bytes())
    for address in addresses:
        at = next(
            address - start + offset for size, start, offset in sections if start <= address < start + size
        )
        if data[at : at + 2] != CPUID:
            raise RuntimeError(f"{library.name} has no CPUID where it is listed, at {address:#x}")
        data[at : at + 2] = MARK
    if not addresses:
        raise RuntimeError(f"{library.name} never asks what the processor can do")
    library.write_bytes(data)


def _run(*command: str) -> str:
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(
            f"{command[0]} is needed to hide instruction sets from ONNX Runtime: {error}"
        ) from error
