"""Names of CPU instruction sets, as the Linux kernel spells them and as LLVM does.

Devices and the search use the kernel's spelling, as in /proc/cpuinfo. The tables hold the instruction sets
that LLVM generates code for or that an intrinsic of the search needs. Instruction sets that only operating
systems use are left out, because they don't affect kernels.
"""

from __future__ import annotations

from typing import NamedTuple

# LLVM's names of the architectures whose instructions may read an operand from memory.
X86_ARCHS = ("x86_64", "i686")


class InstructionSet(NamedTuple):
    """An instruction set: `word` in /proc/cpuinfo, `name` in LLVM. Some words have several names."""

    word: str
    name: str


def _table(text: str) -> tuple[InstructionSet, ...]:
    """Parse entries of the form WORD:NAME, or WORD where LLVM's name is the same."""
    pairs = (entry.partition(":") for entry in text.split())
    return tuple(InstructionSet(word, name or word) for word, _, name in pairs)


_X86 = _table(
    "pni:sse3 ssse3 sse4_1:sse4.1 sse4_2:sse4.2 sse4a popcnt movbe abm:lzcnt bmi1:bmi bmi2 tbm gfni "
    "avx f16c fma fma4 xop avx2 vaes vpclmulqdq "
    "avx_vnni:avxvnni avx_ifma:avxifma avx_vnni_int8:avxvnniint8 avx_vnni_int16:avxvnniint16 "
    "avx_ne_convert:avxneconvert "
    "avx512f avx512cd avx512dq avx512bw avx512vl avx512ifma avx512vbmi avx512_vbmi2:avx512vbmi2 "
    "avx512_vnni:avx512vnni avx512_bitalg:avx512bitalg avx512_vpopcntdq:avx512vpopcntdq "
    "avx512_bf16:avx512bf16 avx512_fp16:avx512fp16 avx512_vp2intersect:avx512vp2intersect "
    "avx10_1:avx10.1 avx10_2:avx10.2 "
    "apx:egpr apx:ndd apx:ccmp apx:nf apx:cf apx:push2pop2 apx:ppx apx:zu "
    "amx_tile:amx-tile amx_int8:amx-int8 amx_bf16:amx-bf16 amx_fp16:amx-fp16 amx_complex:amx-complex"
)
_ARM = _table(
    "asimd:neon asimdrdm:rdm asimdhp:fullfp16 asimdfhm:fp16fml asimddp:dotprod fcma:complxnum i8mm bf16 "
    "sve sve2 sme"
)
# Every 64-bit Arm CPU has these, and compiled code relies on them: they can't be disabled.
_MANDATORY = frozenset({"neon"})


class FeatureError(ValueError):
    """An instruction set to disable doesn't exist. The message names it."""


def instruction_sets(arch: str) -> tuple[InstructionSet, ...]:
    """Return the instruction sets of an architecture, which is named as in an LLVM triple; none for an
    unknown one."""
    return {**dict.fromkeys(X86_ARCHS, _X86), "aarch64": _ARM}.get(arch, ())


def llvm_names(spelling: str, arch: str) -> tuple[str, ...]:
    """Return LLVM's names of an instruction set in either spelling.

    Raises FeatureError if the architecture has no such instruction set that can be disabled.
    """
    names = tuple(
        one.name for one in instruction_sets(arch) if spelling.lower() in one and one.name not in _MANDATORY
    )
    if not names:
        raise FeatureError(
            f"{spelling!r} is no instruction set of {arch} to be given up: write one that `lscpu` shows"
        )
    return names


def disabled_features(text: str, arch: str) -> tuple[str, ...]:
    """Return the names in "-NAME,-NAME". Raises FeatureError for another format and for unknown names."""
    names = [entry.strip() for entry in text.split(",")] if text else []
    if not all(name.startswith("-") and len(name) > 1 for name in names):
        raise FeatureError("instruction sets are given up like this: -avx512f,-avx2")
    for name in names:
        llvm_names(name[1:], arch)
    return tuple(dict.fromkeys(name[1:].lower() for name in names))
