"""Detect this machine's device fingerprint and its TVM target.

The target has LLVM's name of the processor, and the instruction sets that differ from that processor's. A
hypervisor may hide some, and a device's owner may disable some. The device's features are the instruction
sets that it executes. They determine the length of its vectors and the available intrinsics.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import logging
import os
import platform
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import tvm
from tvm.target.codegen import llvm_get_cpu_features

from compiler.boards import Board, find_board
from core.device import Device
from core.instruction_sets import X86_ARCHS, FeatureError, instruction_sets, llvm_names
from system.linux import request_tiles

_log = logging.getLogger(__name__)

# The folders and files in which Linux describes the machine.
ROOT = Path("/")
CPU_INFO, CACHES, DEVICE_TREE = "proc/cpuinfo", "sys/devices/system/cpu/cpu0/cache", "proc/device-tree/model"
SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# Cache sizes that are assumed if Linux doesn't report them: those of a small core.
DEFAULT_CACHES = {"l1": 32 << 10, "l2": 512 << 10, "l3": 2 << 20}
# The prefixes of features that the search and the estimate use, as /proc/cpuinfo spells them.
FEATURE_PREFIXES = ("avx", "sse4", "asimd", "sve", "fma", "neon", "i8mm", "bf16", "amx")
# Linux lists these only if it saves their registers on a context switch, even if the processor has them.
NEED_SAVED_REGISTERS = ("avx", "avx512f", "amx_tile")
# AMX's tiles, as LLVM names them. Linux must permit them.
TILES = "amx-tile"
# Instruction sets that are never enabled beyond LLVM's processor: TVM's vector lengths are fixed at compile
# time.
NOT_ADDED = ("sve", "sme")
AT_HWCAP, AT_HWCAP2 = 16, 26
# The bits of features in these two words (Linux, arch/arm64/include/uapi/asm/hwcap.h), by LLVM's names.
ARM_BITS = {"neon": 1, "fullfp16": 10, "rdm": 12, "complxnum": 14, "dotprod": 20, "sve": 22, "fp16fml": 23}
ARM_BITS_2 = {"sve2": 1, "i8mm": 13, "bf16": 14, "sme": 23}


def detect_device(cores: int | None = None, without: Sequence[str] = ()) -> Device:
    """Describe this machine's CPU. Candidates run on `cores`, by default on all that the process may use.

    The device disables the instruction sets in `without`, spelled as in Linux or LLVM, and all that depend on
    them. It is then in another device class. So does a device whose kernel refuses AMX. This process may use
    AMX afterwards. A known board gets the cache sizes of its data sheet and, if
    LLVM doesn't recognize the processor, its processor's name. Raises FeatureError for an instruction set
    that the machine lacks.
    """
    board = find_board(_read(ROOT / DEVICE_TREE).rstrip("\0\n"))
    arch = platform.machine()
    triple = f"{arch}-linux-gnu"
    num_cores = cores or len(os.sched_getaffinity(0))
    mcpu = _host_cpu()
    if board is not None and mcpu == "generic":
        mcpu = board.mcpu
    attributes = {"kind": "llvm", "mtriple": triple, "mcpu": mcpu, "num-cores": num_cores}
    words = _cpuinfo_features()
    executed = _executed_features(attributes, words, without)
    features = _device_features(arch, words, executed)
    caches = _cache_bytes(board)
    llvm = tvm.get_global_func("target.llvm_version_major")()
    return Device(
        name=platform.node() or "local",
        triple=triple,
        mcpu=mcpu,
        features=features,
        cores=num_cores,
        vector_bytes=64 if "avx512f" in features else 32 if "avx2" in features else 16,
        l1_bytes=caches["l1"],
        l2_bytes=caches["l2"],
        l3_bytes=caches["l3"],
        toolchain=f"tvm {importlib.metadata.version('apache-tvm')} llvm {llvm}",
        target=_target_text(attributes, executed),
    )


def parse_target(text: str) -> tvm.target.Target:
    """Parse a TVM target. Raises ValueError if TVM doesn't know it."""
    try:
        return tvm.target.Target(json.loads(text))
    except Exception as error:  # TVM's C++ code may raise any exception class
        raise ValueError(f"not a target that TVM knows: {text[:200]}") from error


def capability_of(target: tvm.target.Target) -> int:
    """Return ten times the compute capability of a GPU's target (80 for 8.0); 0 for other targets."""
    if target.kind.name != "cuda":
        return 0
    return int("".join(filter(str.isdigit, str(target.attrs["arch"]))))


def target_features(target: tvm.target.Target) -> frozenset[str]:
    """Return the instruction sets of a CPU target as Linux names them; none for other targets."""
    return _features(str(target)) if target.kind.name == "llvm" else frozenset()


@lru_cache(maxsize=64)
def _features(text: str) -> frozenset[str]:
    """Return the instruction sets of a CPU target by its text: LLVM takes 0.2 ms to list them."""
    target = parse_target(text)
    arch = host_triple(target).partition("-")[0]
    names = {str(name) for name in llvm_get_cpu_features(target)}
    return frozenset(one.word for one in instruction_sets(arch) if one.name in names)


def host_triple(target: tvm.target.Target) -> str:
    """Return the LLVM triple of the machine that runs a target's host code; this machine's by default."""
    host = target.host if target.host is not None else target
    return str(host.attrs.get("mtriple", f"{platform.machine()}-linux-gnu"))


def is_arm(target: tvm.target.Target) -> bool:
    """Return whether a target's host code runs on 64-bit Arm."""
    return host_triple(target).startswith("aarch64")


def is_x86(target: tvm.target.Target) -> bool:
    """Return whether a target's host code runs on x86."""
    return host_triple(target).partition("-")[0] in X86_ARCHS


def _executed_features(
    attributes: Mapping[str, Any], words: Sequence[str], without: Sequence[str]
) -> dict[str, bool]:
    """Return for each instruction set of this kind of machine (LLVM's names) whether the device executes it.

    Raises FeatureError if the machine lacks one of `without` anyway.
    """
    arch = platform.machine()
    names = {known.name for known in instruction_sets(arch)}
    present = {name: is_present for name, is_present in _host_features().items() if name in names}
    given_up = []
    for spelling in without:
        found = [name for name in llvm_names(spelling, arch) if present.get(name)]
        if not found:
            raise FeatureError(f"this machine has no {spelling} to give up: leave it out")
        given_up += found
    if words:
        unsaved = [
            one
            for one in instruction_sets(arch)
            if one.word in NEED_SAVED_REGISTERS and one.word not in words
        ]
        given_up += [one.name for one in unsaved if present.get(one.name)]
    if present.get(TILES) and TILES not in given_up and not _permits_tiles():
        given_up.append(TILES)
    # LLVM knows the dependencies of instruction sets.
    switches = [f"+{name}" for name in sorted(present) if present[name]]
    left = _llvm_features(attributes, [*switches, *(f"-{name}" for name in sorted(given_up))])
    return {name: is_present and name in left for name, is_present in present.items()}


def _permits_tiles() -> bool:
    """Ask Linux to let this process use AMX's tiles; log why it refuses."""
    try:
        request_tiles()
    except OSError as error:
        _log.warning(
            "Linux doesn't let this process use AMX (%s), so candidates don't use it: "
            "update the kernel to 5.16 or later, or disable it by --features=-amx_tile",
            error.strerror,
        )
        return False
    return True


def _host_cpu() -> str:
    """Return LLVM's name of this machine's processor."""
    return str(tvm.get_global_func("target.llvm_get_system_cpu")())


def _host_features() -> dict[str, bool]:
    """Ask the processor for its instruction sets, by LLVM's names.

    On an emulator the emulated processor answers, while /proc/cpuinfo describes the real one.
    """
    if platform.machine() != "aarch64":
        found = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
        return {str(name): bool(is_present) for name, is_present in found.items()}
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.argtypes, getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
    return {
        name: bool(getauxval(kind) >> bit & 1)
        for kind, bits in ((AT_HWCAP, ARM_BITS), (AT_HWCAP2, ARM_BITS_2))
        for name, bit in bits.items()
    }


def _target_text(attributes: Mapping[str, Any], executed: Mapping[str, bool]) -> str:
    """Return the target as canonical JSON. Its mattr has the differences from LLVM's processor, without those
    that others imply."""
    own = _llvm_features(attributes)
    missing = {name for name, runs in executed.items() if runs and not name.startswith(NOT_ADDED)} - own
    added = _without_implied("+", {name: _llvm_features(attributes, [f"+{name}"]) for name in missing})
    extended = _llvm_features(attributes, added)
    surplus = {name for name, runs in executed.items() if not runs} & extended
    removed = _without_implied(
        "-", {name: extended - _llvm_features(attributes, [*added, f"-{name}"]) for name in surplus}
    )
    differences = {"mattr": added + removed} if added or removed else {}
    return json.dumps({**attributes, **differences}, sort_keys=True, separators=(",", ":"))


def _without_implied(sign: str, changes: Mapping[str, set[str]]) -> list[str]:
    """Return the names in `changes` whose effect isn't implied by another name. `changes` maps a name to all
    features that it changes."""
    return [
        f"{sign}{name}"
        for name in sorted(changes)
        if not any(name in changed for other, changed in changes.items() if other != name)
    ]


def _llvm_features(attributes: Mapping[str, Any], switches: Sequence[str] = ()) -> set[str]:
    """Return a target's features by LLVM's names, after switching features on (+) and off (-) in order."""
    target = tvm.target.Target({**attributes, "mattr": list(switches)} if switches else dict(attributes))
    return {str(name) for name in llvm_get_cpu_features(target)}


def _cpuinfo_features() -> tuple[str, ...]:
    """Return the features in /proc/cpuinfo; none if it lists none, or describes the host of an emulator."""
    line = "Features" if platform.machine().startswith(("aarch64", "arm")) else "flags"
    for text in _read(ROOT / CPU_INFO).splitlines():
        name, _, words = text.partition(":")
        if name.strip() == line:
            return tuple(words.split())
    return ()


def _device_features(arch: str, words: Sequence[str], executed: Mapping[str, bool]) -> tuple[str, ...]:
    """Return the vector instruction sets as Linux names them, without those that aren't executed."""
    known = instruction_sets(arch)
    present = {one.word for one in known if executed.get(one.name)}
    lacking = tuple({one.word for one in known} - present)
    # An unknown word, such as svei8mm, is dropped together with its known prefix.
    kept = [word for word in words or present if word in present or not word.startswith(lacking)]
    return tuple(sorted(word for word in kept if word.startswith(FEATURE_PREFIXES)))


def _cache_bytes(board: Board | None) -> dict[str, int]:
    """Return the sizes of the caches: a known board's, or what Linux reports of core 0."""
    if board is not None:
        return {"l1": board.l1_bytes, "l2": board.l2_bytes, "l3": board.l3_bytes}
    found = dict(DEFAULT_CACHES)
    for folder in sorted((ROOT / CACHES).glob("index*")):
        kind, level, size = (_read(folder / name).strip() for name in ("type", "level", "size"))
        if kind in ("Data", "Unified") and size[-1:] in SIZES:
            found[f"l{level}"] = int(size[:-1]) * SIZES[size[-1]]
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
