"""What this machine is, as a device fingerprint, and how TVM is told to generate code for it.

The target is what the machine executes: LLVM's name of its processor, and the instruction sets in which this
one differs from it. A hypervisor may hide some, and a device may be told to do without some. The device's
features are of the same sets, and from them follow its vectors and the intrinsics that the search offers.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm.target.codegen import llvm_get_cpu_features

from compiler.boards import Board, find_board
from core.device import Device
from core.instruction_sets import FeatureError, instruction_sets, llvm_names

CPU_INFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
DEVICE_TREE = Path("/proc/device-tree/model")
SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# Assumed where the system tells nothing: a small core's.
DEFAULT_CACHES = {"l1": 32 << 10, "l2": 512 << 10, "l3": 2 << 20}
# The words of a device's features begin so: those that the search and the estimate ask for.
FEATURES = ("avx", "sse4", "asimd", "sve", "fma", "neon")
# Where the kernel doesn't name these, it doesn't keep their registers, whatever the processor says.
REGISTERS = ("avx", "avx512f")
# Never switched on where LLVM's name doesn't have them: programs must ask the kernel for the first, and TVM's
# vectors have lengths that are known when they are compiled.
NOT_ADDED = ("amx", "sve", "sme")
AT_HWCAP, AT_HWCAP2 = 16, 26
# The bits of these two (Linux, arch/arm64/include/uapi/asm/hwcap.h), by LLVM's names.
ARM_BITS = {"neon": 1, "fullfp16": 10, "rdm": 12, "complxnum": 14, "dotprod": 20, "sve": 22, "fp16fml": 23}
ARM_BITS_2 = {"sve2": 1, "i8mm": 13, "bf16": 14, "sme": 23}


def detect_device(cores: int | None = None, without: Sequence[str] = ()) -> Device:
    """This machine's CPU; `cores` is how many candidates run on, by default all that the process may use.

    It does `without` some instruction sets, spelled as the kernel or LLVM does, and without all that need
    them: that is a device class of its own. Boards that are known are believed to be what their maker says,
    where their system says less. Raises FeatureError for an instruction set that isn't there.
    """
    board = find_board(_read(DEVICE_TREE).rstrip("\0\n"))
    machine = platform.machine()
    triple = f"{machine}-linux-gnu"
    num_cores = cores or len(os.sched_getaffinity(0))
    mcpu = _mcpu(board)
    facts = {"kind": "llvm", "mtriple": triple, "mcpu": mcpu, "num-cores": num_cores}
    words = _kernel_words()
    executed = _executed(facts, words, without)
    features = _features(machine, words, executed)
    caches = _cache_bytes(board)
    return Device(
        name=platform.node() or "local",
        triple=triple,
        mcpu=mcpu,
        features=features,
        cores=num_cores,
        vector_bytes=_vector_bytes(features),
        l1_bytes=caches["l1"],
        l2_bytes=caches["l2"],
        l3_bytes=caches["l3"],
        toolchain=_toolchain(),
        target=_target(facts, executed),
    )


def parse_target(text: str) -> tvm.target.Target:
    """Raises ValueError when the text is not a target TVM knows."""
    try:
        return tvm.target.Target(json.loads(text))
    except Exception as error:  # TVM raises whatever class its C++ side names
        raise ValueError(f"not a target that TVM knows: {text[:200]}") from error


def host_triple(target: tvm.target.Target) -> str:
    """The LLVM triple of the machine that a target's host code runs on; this machine's if it names none."""
    host = target.host if target.host is not None else target
    return str(host.attrs.get("mtriple", f"{platform.machine()}-linux-gnu"))


def _mcpu(board: Board | None) -> str:
    found = str(tvm.get_global_func("target.llvm_get_system_cpu")())
    return board.mcpu if board is not None and found == "generic" else found


def _executed(facts: Mapping[str, Any], words: Sequence[str], without: Sequence[str]) -> dict[str, bool]:
    """Which of the instruction sets of its kind this machine executes, by LLVM's names, when it does without
    some. Raises FeatureError for those of them that it lacks anyway."""
    machine = platform.machine()
    asked = {known.name for known in instruction_sets(machine)}
    has = {name: there for name, there in _host().items() if name in asked}
    gone = []
    for spelling in without:
        names = [name for name in llvm_names(spelling, machine) if has.get(name)]
        if not names:
            raise FeatureError(f"this machine has no {spelling} to give up: leave it out")
        gone += names
    if words:
        gone += [name for name in REGISTERS if has.get(name) and name not in words]
    added = [f"+{name}" for name in sorted(has) if has[name]]
    left = _llvm_features(facts, [*added, *(f"-{name}" for name in sorted(gone))])
    return {name: there and name in left for name, there in has.items()}


def _host() -> dict[str, bool]:
    """What the processor says of itself to a program, by LLVM's names. Under an emulator it is the emulated
    one, while /proc/cpuinfo is the real one's."""
    if platform.machine() != "aarch64":
        found = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()
        return {str(name): bool(there) for name, there in found.items()}
    ask = ctypes.CDLL(None).getauxval
    ask.argtypes, ask.restype = [ctypes.c_ulong], ctypes.c_ulong
    return {
        name: bool(ask(kind) >> bit & 1)
        for kind, bits in ((AT_HWCAP, ARM_BITS), (AT_HWCAP2, ARM_BITS_2))
        for name, bit in bits.items()
    }


def _target(facts: Mapping[str, Any], executed: Mapping[str, bool]) -> str:
    """The canonical text: it names only what differs from the processor's own, and of that what implies the
    rest."""
    own = _llvm_features(facts)
    more = {name for name, there in executed.items() if there and not name.startswith(NOT_ADDED)} - own
    added = _fewest("+", {name: _llvm_features(facts, [f"+{name}"]) for name in more})
    grown = _llvm_features(facts, added)
    less = {name for name, there in executed.items() if not there} & grown
    taken = _fewest("-", {name: grown - _llvm_features(facts, [*added, f"-{name}"]) for name in less})
    attributes = {"mattr": added + taken} if added or taken else {}
    return json.dumps({**facts, **attributes}, sort_keys=True, separators=(",", ":"))


def _fewest(sign: str, changes: Mapping[str, set[str]]) -> list[str]:
    """The names, by what each changes, without those that another one changes too."""
    return [
        f"{sign}{name}"
        for name in sorted(changes)
        if not any(name in changed for other, changed in changes.items() if other != name)
    ]


def _llvm_features(facts: Mapping[str, Any], attributes: Sequence[str] = ()) -> set[str]:
    """LLVM's names of what a processor of this name has, attributes switched on and off in their order."""
    target = tvm.target.Target({**facts, "mattr": list(attributes)} if attributes else dict(facts))
    return {str(name) for name in llvm_get_cpu_features(target)}


def _kernel_words() -> tuple[str, ...]:
    """What the kernel says that this machine has; nothing where it doesn't say, or speaks of another kind of
    machine that this one is emulated on."""
    line = "Features" if platform.machine().startswith(("aarch64", "arm")) else "flags"
    for text in _read(CPU_INFO).splitlines():
        name, _, words = text.partition(":")
        if name.strip() == line:
            return tuple(words.split())
    return ()


def _features(machine: str, words: Sequence[str], executed: Mapping[str, bool]) -> tuple[str, ...]:
    """The vector instruction sets in the kernel's words, without those that can't be executed."""
    known = instruction_sets(machine)
    there = {one.word for one in known if executed.get(one.name)}
    lacking = tuple({one.word for one in known} - there)
    # A word that isn't known here, such as svei8mm, goes with the one that it begins with.
    kept = [word for word in words or there if word in there or not word.startswith(lacking)]
    return tuple(sorted(word for word in kept if word.startswith(FEATURES)))


def _vector_bytes(features: tuple[str, ...]) -> int:
    if "avx512f" in features:
        return 64
    return 32 if "avx2" in features else 16


def _cache_bytes(board: Board | None) -> dict[str, int]:
    if board is not None:
        return {"l1": board.l1_bytes, "l2": board.l2_bytes, "l3": board.l3_bytes}
    found = dict(DEFAULT_CACHES)
    for folder in sorted(CACHES.glob("index*")):
        kind, level, size = (_read(folder / name).strip() for name in ("type", "level", "size"))
        if kind in ("Data", "Unified") and size[-1:] in SIZES:
            found[f"l{level}"] = int(size[:-1]) * SIZES[size[-1]]
    return found


def _toolchain() -> str:
    llvm = tvm.get_global_func("target.llvm_version_major")()
    return f"tvm {importlib.metadata.version('apache-tvm')} llvm {llvm}"


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
