"""Mask instruction sets of the processor for ONNX Runtime and OpenVINO.

They choose kernels by the CPUID instruction. ONNX Runtime has no switch; OpenVINO's matrix products ignore
oneDNN's switch. In a copy of the package, CPUID is replaced by an invalid instruction; the handler of SIGILL
in cpuid.c answers instead of the processor.
"""

from __future__ import annotations

import ctypes
import importlib.util
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CPUID, MARK = b"\x0f\xa2", b"\x06\xa2"  # the invalid instruction that cpuid.c handles
SOURCE = Path(__file__).with_name("cpuid.c")
# A line of objdump's section headers: size, address and file offset of the section.
SECTION = re.compile(r"\s*\d+ \S+\s+([0-9a-f]+)\s+([0-9a-f]+)\s+[0-9a-f]+\s+([0-9a-f]+)")
# LLVM's features given up -> whether AVX is masked too, not only AVX-512.
MASKS_AVX: dict[tuple[str, ...], bool] = {("avx512f",): False, ("avx",): True}


# Packages that can be masked, and their libraries that execute CPUID.
LIBRARIES: Mapping[str, Sequence[str]] = {
    "onnxruntime": ("capi/onnxruntime_pybind11_state*.so",),
    "openvino": ("libs/libopenvino.so*", "libs/libopenvino_intel_cpu_plugin.so"),
}


@dataclass(frozen=True)
class MaskedPackage:
    """A copy of the package `name` in `folder`, and the shared library of its CPUID handler."""

    name: str
    folder: Path
    handler: Path
    masks_avx: bool

    def prepare(self) -> None:
        """Make this process import the copy. Raises RuntimeError when it has imported the package already."""
        if self.name in sys.modules:
            raise RuntimeError(f"{self.name} is loaded already, and knows its processor")
        if ctypes.CDLL(str(self.handler)).tunefarm_hide(int(self.masks_avx)):
            raise RuntimeError("the process can't answer for the processor: no handler of SIGILL")
        sys.path.insert(0, str(self.folder))

    def check(self) -> None:
        """Raises RuntimeError when the package never reached the handler, so that nothing was masked."""
        if not ctypes.CDLL(str(self.handler)).tunefarm_cpuid_asked():
            raise RuntimeError(f"{self.name} didn't query the processor through us: nothing is hidden")


def mask(name: str, features: Sequence[str], folder: Path) -> MaskedPackage:
    """Copy an installed package of LIBRARIES (70 to 190 MB) into `folder` and mask `features`.

    Raises RuntimeError where that fails.
    """
    masks_avx = MASKS_AVX.get(tuple(features))
    spec = importlib.util.find_spec(name)
    if masks_avx is None or spec is None or spec.origin is None:
        raise RuntimeError(f"{name} can't be told that the processor has no {', '.join(features)}")
    package = folder / "hidden" / name
    shutil.copytree(Path(spec.origin).parent, package)
    for library in (each for pattern in LIBRARIES[name] for each in package.glob(pattern)):
        replace_cpuid(library)
    return MaskedPackage(name, package.parent, compile_cpuid_handler(folder / "hidden"), masks_avx)


def compile_cpuid_handler(folder: Path) -> Path:
    """Compile cpuid.c to a shared library in `folder`. Raises RuntimeError without a C compiler."""
    library = folder / "cpuid.so"
    try:
        subprocess.run(("cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE), check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise RuntimeError(f"instruction sets can't be hidden: {error}") from error
    return library


def replace_cpuid(library: Path) -> None:
    """Replace each CPUID instruction of a shared library by MARK.

    They are found by disassembling, since the same bytes occur within other instructions. Raises RuntimeError
    when there is none.
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
        raise RuntimeError(f"{library.name} never queries the processor's features")
    library.write_bytes(data)


def _lines(*command: str) -> Iterator[str]:
    """Yield a command's output line by line: a library's disassembly is half a gigabyte."""
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            yield from process.stdout
    except OSError as error:
        raise RuntimeError(f"instruction sets can't be hidden: {error}") from error
    if process.returncode:
        raise RuntimeError(f"instruction sets can't be hidden: {command[0]} failed")
