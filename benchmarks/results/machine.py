"""Which machine and which versions figures were measured on. Names nobody's host."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path

import psutil

PACKAGES = ("apache-tvm", "onnxruntime", "xgboost-cpu", "numpy")


def describe(threads: int) -> str:
    """One line: processor, threads used, memory, system, versions and the load before the benchmark."""
    memory_gib = psutil.virtual_memory().total / 2**30
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    return (
        f"{_processor()}, {threads} threads of {os.cpu_count()} CPUs, {memory_gib:.0f} GiB; "
        f"{platform.system()} {platform.machine()}, Python {platform.python_version()}; {versions}; "
        f"load before {os.getloadavg()[0]:.1f}"
    )


def _processor() -> str:
    fields: dict[str, str] = {}
    if Path("/proc/cpuinfo").exists():
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name") or platform.processor() or platform.machine()
    flags = fields.get("flags", "").split()
    vectors = next((flag for flag in ("avx512f", "avx2") if flag in flags), "")
    return f"{name} ({vectors})" if vectors else name
