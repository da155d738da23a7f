"""Compile models in one call; a job's last step needs two."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tvm

from compiler.packaging.artifact import build_scheduled, schedule_module


def build_module(fused: tvm.IRModule, schedules: Mapping[str, str], target: str, library: Path) -> None:
    """Compile a fused module with these schedules, of `schedule_module`, into a shared library."""
    build_scheduled(schedule_module(fused, schedules, target), target, library)
