"""Describe the machine, the versions and the commit of a run, without the host's name."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

PACKAGES = ("apache-tvm", "onnxruntime", "openvino", "xgboost-cpu", "numpy")
CPU_INFO = Path("/proc/cpuinfo")
# Flags of /proc/cpuinfo that decide how fast a network can be.
VECTORS = (
    *("sse4_2", "avx", "avx2", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"),
    *("amx_tile", "asimd", "asimddp", "i8mm", "bf16", "sve", "sve2"),
)

# The names of instruction sets by processor flag, the largest first.
INSTRUCTION_SETS = {"amx_tile": "AMX", "avx512f": "AVX-512", "avx2": "AVX2", "sse4_2": "SSE4.2"}
# The instruction sets of INSTRUCTION_SETS that depend on a feature.
_LOST_WITH = {
    **dict.fromkeys(("avx", "avx2"), ("avx2", "avx512f", "amx_tile")),
    "avx512f": ("avx512f", "amx_tile"),
}


def describe(threads: int, without: Sequence[str] = ()) -> str:
    """Describe in one line: processor, available and disabled (`without`) instruction sets, threads, memory,
    system, versions, and the load before the benchmark."""
    processor = _cpu_info().get("model name") or platform.processor() or platform.machine()
    memory_gib = psutil.virtual_memory().total / 2**30
    shown = flags()
    vectors = ", ".join(flag for flag in VECTORS if flag in shown) or "no vector instructions that are known"
    lost = f"; given up: {', '.join(without)} and what builds on it" if without else ""
    return (
        f"{processor} ({vectors}{lost}), {threads} threads of {os.cpu_count()} CPUs, "
        f"{memory_gib:.0f} GiB; {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}; {', '.join(_versions())}; load before {os.getloadavg()[0]:.1f}"
    )


def instruction_set(without: Sequence[str] = ()) -> str:
    """Return the largest of INSTRUCTION_SETS that is left without the features in `without` and all that
    depend on them.

    Return "" for other processors than x86.
    """
    lost = {flag for name in without for flag in _LOST_WITH.get(name, (name,))}
    shown = flags() - lost
    return next((name for flag, name in INSTRUCTION_SETS.items() if flag in shown), "")


def commit() -> str:
    """Return the short id of the checkout's commit, with "-dirty" after changes; "" without git."""
    command = ("git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude=*")
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def flags() -> frozenset[str]:
    """Return the processor's flags in /proc/cpuinfo; none if it has none."""
    fields = _cpu_info()
    return frozenset((fields.get("flags") or fields.get("Features") or "").split())


def _cpu_info() -> dict[str, str]:
    """Return the fields of the first processor."""
    fields: dict[str, str] = {}
    if CPU_INFO.exists():
        for line in CPU_INFO.read_text().splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    return fields


def _versions() -> list[str]:
    found = []
    for name in PACKAGES:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"no {name}")
    return found
