"""Device classes that one machine emulates: every contestant disables the same instruction sets."""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from benchmarks.results import machine
from benchmarks.timing.contestants import spawn_process
from core.device import Device

# The variable with the instruction sets that workers don't use, unless a flag sets them.
WORKER_FEATURES = "TUNEFARM_WORKER_FEATURES"


@dataclass(frozen=True)
class DeviceClass:
    """A machine limited to some instruction sets.

    `needs` is a flag of /proc/cpuinfo that the machine must have. `without` has LLVM's names of the disabled
    features, including all that depend on them. `onednn` and `aten` are oneDNN's and PyTorch's names of the
    best remaining instruction set, and `llvm_cpu` is LLVM's name of a processor with it.
    """

    name: str
    needs: str | None = None
    without: tuple[str, ...] = ()
    onednn: str | None = None
    aten: str | None = None
    llvm_cpu: str = "host"

    @contextlib.contextmanager
    def for_workers(self) -> Iterator[None]:
        """Let workers that start in this context not use `without`."""
        before = os.environ.get(WORKER_FEATURES)
        if self.without:
            os.environ[WORKER_FEATURES] = ",".join(f"-{feature}" for feature in self.without)
        try:
            yield
        finally:
            if before is None:
                os.environ.pop(WORKER_FEATURES, None)
            else:
                os.environ[WORKER_FEATURES] = before

    def check(self, target: str) -> None:
        """Raise RuntimeError if code for `target`, TVM's JSON, may use a feature in `without`."""
        if self.without:
            with spawn_process() as process:
                used = sorted(process.submit(_features, target).result().intersection(self.without))
            if used:
                raise RuntimeError(
                    f"the worker was told to do without {', '.join(used)}, but its code may use it: {target}"
                )


def _features(target: str) -> frozenset[str]:
    """Return LLVM's names of the features that code for the target may use."""
    from tvm.target.codegen import llvm_get_cpu_features

    from compiler.target import parse_target

    return frozenset(map(str, llvm_get_cpu_features(parse_target(target))))


def calibrated(name: str, threads: int) -> Device:
    """Return this machine as a device of the class `name`, with its calibrated profile.

    Needs its own process, with TVM_NUM_THREADS in the environment. Raises ArgumentTypeError for a class that
    this machine can't emulate.
    """
    from compiler.measuring.calibration import calibrate
    from compiler.measuring.cores import bind_thread_pool
    from compiler.target import detect_device

    bind_thread_pool(threads)
    device = detect_device(threads, without=device_class(name).without)
    return replace(device, profile=calibrate(device))


NATIVE = DeviceClass("native")
CLASSES = {
    each.name: each
    for each in (
        NATIVE,
        DeviceClass("avx512", needs="avx512f"),
        DeviceClass("avx2", "avx2", ("avx512f",), onednn="AVX2", aten="avx2", llvm_cpu="x86-64-v3"),
        DeviceClass("sse42", "sse4_2", ("avx",), onednn="SSE41", aten="default", llvm_cpu="x86-64-v2"),
    )
}


def add_device_classes(parser: argparse.ArgumentParser, note: str = "") -> None:
    """Add --device-class, which may be repeated; `note` precedes its help text."""
    parser.add_argument(
        "--device-class",
        action="append",
        type=device_class,
        metavar="CLASS",
        dest="device_classes",
        help=f"{note}{', '.join(CLASSES)} [native, all that the machine has]; may be repeated",
    )


def add_device_class(parser: argparse.ArgumentParser) -> None:
    """Add --device-class, the one class of a run."""
    parser.add_argument(
        "--device-class",
        type=device_class,
        default=NATIVE,
        metavar="CLASS",
        help=f"instruction sets that everyone may use: {', '.join(CLASSES)} [native, all of them]",
    )


def device_class(name: str) -> DeviceClass:
    """Return the class; `without` has only features of this machine.

    Raises ArgumentTypeError for a class that this machine can't emulate.
    """
    found = CLASSES.get(name)
    if found is None:
        raise argparse.ArgumentTypeError(f"{name} is none of {', '.join(CLASSES)}")
    shown = machine.flags()
    if found.needs is not None and found.needs not in shown:
        raise argparse.ArgumentTypeError(f"this machine can't emulate {name}, because it lacks {found.needs}")
    return replace(found, without=tuple(feature for feature in found.without if feature in shown))
