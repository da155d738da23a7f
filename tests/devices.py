"""Devices for databases, jobs and searches. Nothing is measured on them."""

from __future__ import annotations

from dataclasses import replace

from core.device import Device, Gpu
from core.profile import FLOAT32, Profile

# The device classes that an AVX-512 machine can emulate, with the instruction sets to disable for each.
EMULATED_CLASSES = {"avx512": (), "avx2": ("avx512f",), "sse4.2": ("avx",)}

DEVICE = Device(
    name="two cores",
    triple="x86_64-linux-gnu",
    mcpu="skylake-avx512",
    features=("avx2", "avx512f"),
    cores=2,
    vector_bytes=64,
    l1_bytes=32768,
    l2_bytes=1048576,
    l3_bytes=33554432,
    toolchain="llvm 20",
    target='{"kind":"llvm"}',
)

# For models of one operator, which LLVM compiles faster without optimization.
UNOPTIMIZED = '{"kind":"llvm","num-cores":1,"opt-level":0}'

GPU = replace(
    DEVICE,
    name="a GPU",
    cores=108,
    vector_bytes=16,
    l1_bytes=192 << 10,
    l2_bytes=40 << 20,
    l3_bytes=40 << 20,
    target='{"arch":"sm_80","kind":"cuda"}',
    gpu=Gpu(),
)


PROFILE = Profile(
    hertz=4e9,
    multiply_adds={FLOAT32: 2.0, "int8": 0.5},
    latency_cycles=4.0,
    registers=16,
    loads=2.0,
    gather_cycles=0.5,
    l1_rate=64.0,
    l2_rate=40.0,
    l3_rate=20.0,
    memory_rate=8.0,
    memory_rate_all=10.0,
    launch_s=1e-6,
    derived=("registers",),
)
