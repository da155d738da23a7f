"""Detect the device fingerprint of a GPU, and its TVM target."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping
from dataclasses import replace

import tvm

from compiler.codegen.nvcc import OLDEST, compiler_version, too_old
from compiler.packaging.cuda import RUNTIME, load_cuda
from compiler.target import detect_device
from core.device import Device, Gpu

# Numbers of <driver_types.h>, by the names used here.
ATTRIBUTES = {
    "max_threads": 1,
    "shared_bytes": 8,
    "warp_size": 10,
    "registers": 12,
    "kilohertz": 13,
    "multiprocessors": 16,
    "l2_bytes": 38,
    "resident_threads": 39,
    "capability_major": 75,
    "capability_minor": 76,
    "resident_shared_bytes": 81,
    "dynamic_shared_bytes": 97,
    "resident_blocks": 106,
}
# The attributes that are fields of `Gpu`.
LIMITS = (
    *("max_threads", "warp_size", "shared_bytes", "dynamic_shared_bytes", "registers"),
    *("resident_threads", "resident_blocks", "resident_shared_bytes"),
)
VECTOR_BYTES = 16  # the widest load of a thread
IN_GRAPH = 2  # the way that kernels are timed here (compiler.measuring.timing.GraphTimer)


class NoGpuError(RuntimeError):
    """CUDA shows no GPU to this process. The message says why."""


def detect_gpu() -> Device:
    """Return the first GPU that CUDA shows to this process as a device. This opens CUDA. Raises CudaError and
    NoGpuError."""
    found = read_attributes()
    host = detect_device()
    capability = found["capability_major"] * 10 + found["capability_minor"]
    if capability < OLDEST:
        raise NoGpuError(too_old(f"sm_{capability}"))
    gpu = Gpu(
        capability=capability,
        model=str(tvm.cuda(0).device_name),
        cuda=compiler_version() or "unknown",
        timing=IN_GRAPH,
        **{name: found[name] for name in LIMITS},
    )
    return replace(
        host,
        name=f"{host.name} {gpu.model}",
        mcpu=f"sm_{capability}",
        features=(),
        cores=found["multiprocessors"],
        vector_bytes=VECTOR_BYTES,
        l1_bytes=gpu.resident_shared_bytes,
        l2_bytes=found["l2_bytes"],
        l3_bytes=found["l2_bytes"],
        target=target_text(gpu, json.loads(host.target)),
        gpu=gpu,
    )


def target_text(gpu: Gpu, host: Mapping[str, object]) -> str:
    """Return the target of a GPU as canonical JSON. `host` is the host's target."""
    target = {
        "kind": "cuda",
        "arch": f"sm_{gpu.capability}",
        "max_threads_per_block": gpu.max_threads,
        "max_shared_memory_per_block": gpu.shared_bytes,
        "thread_warp_size": gpu.warp_size,
        "host": dict(host),
    }
    return json.dumps(target, sort_keys=True, separators=(",", ":"))


def read_attributes() -> dict[str, int]:
    """Return the attributes of the first GPU from CUDA's runtime, by the names in ATTRIBUTES. Raises
    CudaError and NoGpuError."""
    load_cuda()
    runtime = ctypes.CDLL(RUNTIME)
    runtime.cudaGetErrorString.restype = ctypes.c_char_p
    found = {}
    for name, number in ATTRIBUTES.items():
        value = ctypes.c_int()
        error = runtime.cudaDeviceGetAttribute(ctypes.byref(value), number, 0)
        if error:
            said = (runtime.cudaGetErrorString(error) or b"").decode(errors="replace")
            raise NoGpuError(f"CUDA shows no GPU here: {said} (error {error})")
        found[name] = value.value
    return found
