"""Check that a shared library needs only TVM's runtime, mathematics and memory from its process.

This doesn't prove that a library is harmless, because it is machine code. The sandbox contains it. This is
the last of three checks: a call that a trace or a workload has smuggled in appears here as a name that TVM's
code never refers to. The server checks libraries of builders, and devices check all libraries.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from typing import IO

from core.elf_outline import MalformedElf, outline_library, undefined_names

MAX_GPU_PROGRAMS = 256
_CHUNK_BYTES = 16 << 20
_FLOAT_MATH = (
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "copysign", "cos", "cosh"),
    *("erf", "erfc", "exp", "exp10", "exp2", "expm1", "fabs", "fdim", "floor", "fma", "fmax", "fmin"),
    *("fmod", "frexp", "hypot", "ldexp", "lgamma", "llrint", "llround", "log", "log10", "log1p", "log2"),
    *("logb", "lrint", "lround", "modf", "nearbyint", "nextafter", "pow", "remainder", "rint", "round"),
    *("roundeven", "scalbn", "sin", "sincos", "sinh", "sqrt", "tan", "tanh", "tgamma", "trunc"),
)
# Functions that TVM's code generators and our packaging call, and that compilers add to any library.
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
# The compiler's own arithmetic for types that a processor lacks, and vector functions of libmvec.
_COMPILER_SYMBOLS = re.compile(
    r"__(extend|trunc|fix|fixuns|float|floatun|floatuns)[a-z]{2,4}[a-z]{2}[0-9]?"
    r"|__gnu_(h2f|f2h)_ieee|__(u?div|u?mod|mul|ashl|ashr|lshr|clz|ctz|popcount|parity)[ds-t]i[234]"
    r"|__mul[sd]c3|__div[sd]c3|__aarch64_(cas|swp|ldadd|ldclr|ldeor|ldset)[1248]_(relax|acq|rel|acq_rel)"
)
_LIBRARIES = re.compile(
    r"lib(c|m|mvec|dl|pthread|rt)\.so\.[0-9]+|lib(gcc_s|stdc\+\+|c\+\+|c\+\+abi|unwind)\.so\.[0-9]+"
    r"|libtvm_(runtime|ffi)\.so|ld-linux[\w.-]*\.so\.[0-9]+"
)
# The entries of a dynamic section that name other files: DT_RPATH, DT_RUNPATH, DT_AUDIT, DT_DEPAUDIT,
# DT_AUXILIARY and DT_FILTER.
_REFUSED_TAGS = frozenset((15, 29, 0x6FFFFEFC, 0x6FFFFEFB, 0x7FFFFFFD, 0x7FFFFFFF))
# Names of functions and data of compiled programs.
_OWN_NAMES = ("__tvm_", "__TVM")
_CUDA_ELF, _ELF_MAGIC = 190, b"\x7fELF\x02\x01\x01"
_MACHINE_AT, _OVERLAP_BYTES = 18, 4096
# This pattern takes linear time: it doesn't backtrack, and doesn't match beyond another ".extern".
_PTX_CALL = re.compile(rb"\.extern\s++(?:\.(?!func\b|extern\b)\w++\s++)*+\.func\b[^;]{0,200}")


class SymbolError(ValueError):
    """A library refers to a name that no compiled model needs. The message is one sentence."""


def check_library(file: IO[bytes]) -> None:
    """Check the names that a shared library and the GPU code within it refer to.

    Takes time in proportion to the file's size. Raises SymbolError for a name that isn't on the list, and for
    a file that can't be read as a library.
    """
    try:
        library = outline_library(file)
    except MalformedElf as error:
        raise SymbolError(f"the library can't be read: {error}") from error
    if not _REFUSED_TAGS.isdisjoint(library.tags) or not all(map(_LIBRARIES.fullmatch, library.libraries)):
        raise SymbolError("the library asks for files that no compiled program needs")
    # This includes names that the library defines, because the loader may use another library's definition.
    check_names(name for name in library.symbols if not name.startswith(_OWN_NAMES))
    _check_gpu_code(file)


def check_cubin(data: bytes) -> None:
    """Check that machine code for a GPU calls nothing that isn't in it. Raises SymbolError."""
    _check_gpu_programs(io.BytesIO(data), [0])


def check_names(names: Iterable[str]) -> None:
    """Check names against the list of allowed ones. Raises SymbolError."""
    foreign = sorted(name for name in names if name not in _SYMBOLS and not _COMPILER_SYMBOLS.fullmatch(name))
    if foreign:
        listed = ", ".join(ascii(name)[1:-1][:64] for name in foreign[:4])
        raise SymbolError(f"the library calls what no compiled program needs: {listed}")


def _check_gpu_programs(file: IO[bytes], starts: Iterable[int]) -> None:
    try:
        for name in undefined_names(file, starts):
            # NVIDIA's names of reserved memory begin like this; functions' names don't.
            if not name.startswith(".nv."):
                raise SymbolError(f"the GPU's code calls what isn't in it: {ascii(name)[1:-1][:64]}")
    except MalformedElf as error:
        raise SymbolError(f"the GPU's code can't be read: {error}") from error


def _check_gpu_code(file: IO[bytes]) -> None:
    """Check the machine code and PTX for GPUs that a library holds among its data. Raises SymbolError."""
    starts = []
    for start, chunk in _chunks(file):
        if found := _PTX_CALL.search(chunk):
            raise SymbolError(f"the library has PTX that calls what isn't in it: {ascii(found[0])[2:98]}")
        at = chunk.find(_ELF_MAGIC)
        while 0 <= at < _CHUNK_BYTES:
            machine = int.from_bytes(chunk[at + _MACHINE_AT : at + _MACHINE_AT + 2], "little")
            if machine == _CUDA_ELF:
                starts.append(start + at)
            if len(starts) > MAX_GPU_PROGRAMS:
                raise SymbolError(f"the library has more than {MAX_GPU_PROGRAMS} programs for GPUs")
            at = chunk.find(_ELF_MAGIC, at + 1)
    _check_gpu_programs(file, starts)


def _chunks(file: IO[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, part) of a file. Neighbouring parts overlap, so that no match is cut in two."""
    start = 0
    while True:
        file.seek(start)
        chunk = file.read(_CHUNK_BYTES + _OVERLAP_BYTES)
        yield start, chunk
        if len(chunk) <= _CHUNK_BYTES:
            return
        start += _CHUNK_BYTES
