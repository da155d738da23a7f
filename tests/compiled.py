"""Compile models in one call; a job's last step needs two."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from compiler.packaging.artifact import build_scheduled, schedule_module
from compiler.packaging.weights import bind_weights


def build_module(fused: tvm.IRModule, schedules: Mapping[str, str], target: str, library: Path) -> None:
    """Compile a fused module with these schedules, of `schedule_module`, into a shared library."""
    build_scheduled(schedule_module(fused, schedules, target), target, library)


def load_main(library: Path) -> Callable[..., Any]:
    """Return the function that runs a CPU model's library, on tensors of TVM's."""
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), tvm.cpu())
    return bind_weights(machine["main"], library)
