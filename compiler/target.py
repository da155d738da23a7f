"""What this machine is, as a device fingerprint, and how TVM is told to generate code for it."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tvm
from tvm.target.codegen import target_has_features

from compiler.boards import Board, recognised
from search.device import Device

CPU_INFO = Path("/proc/cpuinfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
DEVICE_TREE = Path("/proc/device-tree/model")
SIZES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
# Assumed where the system tells nothing: a small core's.
DEFAULT_CACHES = {"l1": 32 << 10, "l2": 512 << 10, "l3": 2 << 20}
# What the search's intrinsics need, in the kernel's words and in LLVM's: told to LLVM where it knows the CPU
# by a general name only.
ATTRIBUTES = {"asimddp": "dotprod", "avx512_vnni": "avx512vnni"}


def probe(cores: int | None = None) -> Device:
    """This machine's CPU; `cores` is how many candidates run on, by default all that the process may use.

    Boards that are known are believed to be what their maker says, where their system says less.
    """
    board = recognised(_read(DEVICE_TREE).rstrip("\0\n"))
    mcpu = _mcpu(board)
    triple = f"{platform.machine()}-linux-gnu"
    features = _features()
    num_cores = cores or len(os.sched_getaffinity(0))
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
        target=_target(triple, mcpu, features, num_cores),
    )


def parse_target(text: str) -> tvm.target.Target:
    """Raises ValueError when the text is not a target TVM knows."""
    try:
        return tvm.target.Target(json.loads(text))
    except Exception as error:  # TVM raises whatever class its C++ side names
        raise ValueError(f"not a target that TVM knows: {text[:200]}") from error


def triple_of(target: tvm.target.Target) -> str:
    """The LLVM triple of the machine that a target's host code runs on; this machine's if it names none."""
    host = target.host if target.host is not None else target
    return str(host.attrs.get("mtriple", f"{platform.machine()}-linux-gnu"))


def _mcpu(board: Board | None) -> str:
    found = str(tvm.get_global_func("target.llvm_get_system_cpu")())
    return board.mcpu if board is not None and found == "generic" else found


def _target(triple: str, mcpu: str, features: Sequence[str], cores: int) -> str:
    facts: dict[str, Any] = {"kind": "llvm", "mtriple": triple, "mcpu": mcpu, "num-cores": cores}
    known = tvm.target.Target(facts)
    # LLVM ends the process over an instruction that it thinks the CPU doesn't have.
    unknown = [
        f"+{attribute}"
        for feature, attribute in ATTRIBUTES.items()
        if feature in features and not target_has_features(attribute, known)
    ]
    if unknown:
        facts["mattr"] = unknown
    return json.dumps(facts, sort_keys=True, separators=(",", ":"))


def _features() -> tuple[str, ...]:
    """The vector instruction sets that the kernel reports."""
    for line in _read(CPU_INFO).splitlines():
        if line.startswith(("flags", "Features")):
            flags = line.partition(":")[2].split()
            return tuple(
                sorted(f for f in flags if f.startswith(("avx", "sse4", "asimd", "sve", "fma", "neon")))
            )
    return ()


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
