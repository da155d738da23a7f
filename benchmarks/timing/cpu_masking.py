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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

CPUID, MARK = b"\x0f\xa2", b"\x06\xa2"  # what cpuid.c looks for
SOURCE = Path(__file__).with_name("cpuid.c")
# Of objdump: size, address and place in the file of a section.
SECTION = re.compile(r"\s*\d+ \S+\s+([0-9a-f]+)\s+([0-9a-f]+)\s+[0-9a-f]+\s+([0-9a-f]+)")
# What of LLVM's features can be hidden: with everything that builds on it.
HIDES_AVX: dict[tuple[str, ...], bool] = {("avx512f",): False, ("avx",): True}


@dataclass(frozen=True)
class MaskedOnnxRuntime:
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


def mask_onnxruntime(features: Sequence[str], folder: Path) -> MaskedOnnxRuntime:
    """Makes the copy, about 70 MB. Raises RuntimeError where that can't be done."""
    hides_avx = HIDES_AVX.get(tuple(features))
    spec = importlib.util.find_spec("onnxruntime")
    if hides_avx is None or spec is None or spec.origin is None:
        raise RuntimeError(f"ONNX Runtime can't be told that the processor has no {', '.join(features)}")
    package = folder / "hidden" / "onnxruntime"
    shutil.copytree(Path(spec.origin).parent, package)
    for library in package.glob("capi/onnxruntime_pybind11_state*.so"):
        replace_cpuid(library)
    return MaskedOnnxRuntime(package.parent, compile_cpuid_handler(folder / "hidden"), hides_avx)


def compile_cpuid_handler(folder: Path) -> Path:
    """What answers for the processor, as a shared library. Raises RuntimeError without a C compiler."""
    library = folder / "cpuid.so"
    try:
        subprocess.run(("cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE), check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(f"instruction sets can't be hidden from ONNX Runtime: {error}") from error
    return library


def replace_cpuid(library: Path) -> None:
    """Marks each CPUID of a shared library. Bytes alone don't tell: they may be a part of something else.

    Raises RuntimeError where there is none.
    """
    listing = _lines("objdump", "--disassemble", "--no-show-raw-insn", str(library))
    addresses = [int(line.partition(":")[0], 16) for line in listing if line.rstrip().endswith("\tcpuid")]
    headers = map(SECTION.match, _lines("objdump", "--section-headers", str(library)))
    sections = [tuple(int(number, 16) for number in found.groups()) for found in headers if found]
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


def _lines(*command: str) -> Iterator[str]:
    """What a command says, a line at a time: a library's instructions are half a gigabyte of text."""
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            yield from process.stdout
    except OSError as error:
        raise RuntimeError(f"instruction sets can't be hidden from ONNX Runtime: {error}") from error
    if process.returncode:
        raise RuntimeError(f"instruction sets can't be hidden from ONNX Runtime: {command[0]} failed")
