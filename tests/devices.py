"""A device to put into databases and jobs; nothing is measured on it."""

from __future__ import annotations

from search.device import Device

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
