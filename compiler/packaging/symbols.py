"""What a shared library takes from the process that loads it: TVM's runtime, the C library's mathematics.

A library is machine code, so this proves no library harmless: the containment of measured code is there for
that. It is the last of three checks. A call that a trace or a workload has smuggled in shows here as a name
that code from TVM never refers to.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import IO

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.relocation import RelocationTable
from elftools.elf.sections import SymbolTableSection

MAX_SEGMENTS = 64
MAX_TAGS = 512
MAX_SYMBOLS = 1 << 16
MAX_RELOCATIONS = 1 << 20
MAX_CUBIN_BYTES = 64 << 20
_CHUNK_BYTES = 16 << 20
_FLOAT_MATH = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh"),
    *("erf", "erfc", "exp", "exp10", "exp2", "expm1", "fabs", "fdim", "floor", "fma", "fmax", "fmin"),
    *("fmod", "frexp", "hypot", "ldexp", "lgamma", "llrint", "llround", "log", "log10", "log1p", "log2"),
    *("logb", "lrint", "lround", "modf", "nearbyint", "nextafter", "pow", "remainder", "rint", "round"),
    *("roundeven", "scalbn", "sin", "sincos", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc"),
)
# What TVM's code generators and our packaging call, and what compilers add to any library.
_SYMBOLS = frozenset(
    (
        *("TVMFFIErrorSetRaisedFromCStr", "TVMFFIErrorSetRaisedFromCStrParts", "TVMFFIFunctionCall"),
        *("TVMFFIEnvModLookupFromImports", "TVMFFIAnyViewToOwnedAny", "TVMFFIObjectDecRef"),
        *("TVMFFIObjectIncRef", "TVMBackendAllocWorkspace", "TVMBackendFreeWorkspace"),
        *("TVMBackendParallelLaunch", "TVMBackendParallelBarrier", "TVMBackendRunOnce"),
        *("memcpy", "memmove", "memset", "memcmp", "abort", "__stack_chk_fail", "__tls_get_addr"),
        *("__cxa_finalize", "__cxa_atexit", "__gmon_start__", "_ITM_deregisterTMCloneTable"),
        *("_ITM_registerTMCloneTable", "_Jv_RegisterClasses", "__dso_handle"),
        *(f"{name}{suffix}" for name in _FLOAT_MATH for suffix in ("", "f", "l")),
    )
)
# Arithmetic of types that a processor lacks, from the compiler's own library; vectors of libmvec.
_COMPILER_SYMBOLS = re.compile(
    r"__(extend|trunc|fix|fixuns|float|floatun|floatuns)[a-z]{2,4}[a-z]{2}[0-9]?"
    r"|__gnu_(h2f|f2h)_ieee|__(u?div|u?mod|mul|ashl|ashr|lshr|clz|ctz|popcount|parity)[ds-t]i[234]"
    r"|__mul[sd]c3|__div[sd]c3|__aarch64_(cas|swp|ldadd|ldclr|ldeor|ldset)[1248]_(relax|acq|rel|acq_rel)"
)
_LIBRARIES = re.compile(
    r"lib(c|m|mvec|dl|pthread|rt)\.so\.[0-9]+|lib(gcc_s|stdc\+\+|c\+\+|c\+\+abi|unwind)\.so\.[0-9]+"
    r"|libtvm_(runtime|ffi)\.so|ld-linux[\w.-]*\.so\.[0-9]+"
)
# The entries of a dynamic section that name other files, or code that runs before any function is called.
_REFUSED_TAGS = frozenset(("DT_RPATH", "DT_RUNPATH", "DT_AUDIT", "DT_DEPAUDIT", "DT_AUXILIARY", "DT_FILTER"))
_CUDA_ELF, _ELF_MAGIC = 190, b"\x7fELF\x02\x01\x01"
_MACHINE_AT, _OVERLAP_BYTES = 18, 4096
_DECLARED = re.compile(r'^declare\b[^@\n]*@"?([^("\n]+)', re.MULTILINE)
_ASSEMBLER = re.compile(
    r"\basm\b (sideeffect |alignstack |inteldialect |unwind )*\"|^module asm", re.MULTILINE
)
_PTX_CALL = re.compile(rb"\.extern\s+(?:\.\w+\s+)*\.func[^;]{0,200}")


class SymbolError(ValueError):
    """A library refers to what no compiled model needs. The message is one sentence."""


def check_library(file: IO[bytes]) -> None:
    """Check the names that a shared library refers to, and those of the GPU code within it.

    Raises SymbolError for a name that isn't on the list, and for a file that can't be read as a library. The
    dynamic section is read, as the loader does; a library may have no sections at all.
    """
    try:
        file.seek(0)
        names = set(_undefined(ELFFile(file)))
    except SymbolError:
        raise
    except (ELFError, ValueError, LookupError, TypeError, AttributeError, OverflowError, OSError) as error:
        raise SymbolError(f"the library can't be read: {str(error)[:200]}") from error
    _refuse_foreign(names)
    _check_gpu_code(file)


def check_llvm(source: str) -> None:
    """Check the names that LLVM's code refers to, before it is compiled into this process.

    Raises SymbolError.
    """
    if _ASSEMBLER.search(source):
        raise SymbolError("the program has assembler in it")
    _refuse_foreign(name for name in _DECLARED.findall(source) if not name.startswith("llvm."))


def check_cubin(data: bytes) -> None:
    """Check that machine code for a GPU calls nothing that isn't in it. Raises SymbolError."""
    try:
        elf = ELFFile(io.BytesIO(data))
        tables = [one for one in islice(elf.iter_sections(), MAX_TAGS) if isinstance(one, SymbolTableSection)]
        foreign = [
            symbol.name
            for table in tables
            for symbol in islice(table.iter_symbols(), MAX_SYMBOLS)
            # NVIDIA's own names of reserved memory begin so; no function's name does.
            if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name and not symbol.name.startswith(".nv.")
        ]
    except (ELFError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise SymbolError(f"the GPU's code can't be read: {str(error)[:200]}") from error
    if foreign:
        raise SymbolError(f"the GPU's code calls what isn't in it: {ascii(foreign[0])[1:-1][:64]}")


def _refuse_foreign(names: Iterable[str]) -> None:
    foreign = sorted(name for name in names if name not in _SYMBOLS and not _COMPILER_SYMBOLS.fullmatch(name))
    if foreign:
        listed = ", ".join(ascii(name)[1:-1][:64] for name in foreign[:4])
        raise SymbolError(f"the library calls what no compiled program needs: {listed}")


def _undefined(elf: ELFFile) -> Iterator[str]:
    """Yield the names of the symbols that the loader looks for elsewhere."""
    if elf.num_segments() > MAX_SEGMENTS:
        raise SymbolError(f"the library has more than {MAX_SEGMENTS} segments")
    dynamic = [segment for segment in elf.iter_segments() if isinstance(segment, DynamicSegment)]
    if len(dynamic) != 1:
        raise SymbolError("the library has no dynamic section, or more than one")
    [segment] = dynamic
    for tag in islice(segment.iter_tags(), MAX_TAGS):
        name = str(tag.entry.d_tag)
        needed = str(getattr(tag, "needed", ""))
        if name in _REFUSED_TAGS or (name == "DT_NEEDED" and not _LIBRARIES.fullmatch(needed)):
            raise SymbolError("the library asks for files that no compiled program needs")
    for table in segment.get_relocation_tables().values():
        if not isinstance(table, RelocationTable):
            continue  # compressed ones have no symbols
        if table.num_relocations() > MAX_RELOCATIONS:
            raise SymbolError(f"the library has more than {MAX_RELOCATIONS} relocations")
        for number in {relocation["r_info_sym"] for relocation in table.iter_relocations()} - {0}:
            symbol = segment.get_symbol(number)
            if symbol["st_shndx"] == "SHN_UNDEF":
                yield symbol.name


def _check_gpu_code(file: IO[bytes]) -> None:
    """Check the machine code and PTX for GPUs that a library holds among its data. Raises SymbolError."""
    for start, chunk in _chunks(file):
        if found := _PTX_CALL.search(chunk):
            raise SymbolError(f"the library has PTX that calls what isn't in it: {ascii(found[0])[2:98]}")
        at = chunk.find(_ELF_MAGIC)
        while 0 <= at < _CHUNK_BYTES:
            machine = int.from_bytes(chunk[at + _MACHINE_AT : at + _MACHINE_AT + 2], "little")
            if machine == _CUDA_ELF:
                file.seek(start + at)
                check_cubin(file.read(MAX_CUBIN_BYTES))
            at = chunk.find(_ELF_MAGIC, at + 1)


def _chunks(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the file's parts with where they start. Each overlaps the next, so that nothing is cut in two."""
    start = 0
    while True:
        file.seek(start)
        chunk = file.read(_CHUNK_BYTES + _OVERLAP_BYTES)
        yield start, chunk
        if len(chunk) <= _CHUNK_BYTES:
            return
        start += _CHUNK_BYTES
