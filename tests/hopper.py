"""A GPU of compute capability 9.0, with one multiprocessor, so that small products use warpgroups."""

from __future__ import annotations

from dataclasses import replace

import tvm

from core.device import Gpu
from tests.devices import GPU
from tests.gpu_programs import FACTS

HOPPER = replace(
    GPU,
    cores=1,
    target='{"arch":"sm_90","kind":"cuda"}',
    gpu=Gpu(capability=90, dynamic_shared_bytes=227 << 10, resident_shared_bytes=228 << 10),
)
TARGET = tvm.target.Target({**FACTS, "arch": "sm_90", "thread_warp_size": 32}, host={"kind": "llvm"})
