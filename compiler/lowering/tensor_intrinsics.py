"""Register TVM's intrinsics of special instructions when a schedule needs them.

`tvm.s_tir.tensor_intrin` imports the intrinsics of all kinds of devices, which takes ten seconds. One of its
files takes a tenth of a second.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import tvm
from tvm.s_tir import TensorIntrin
from tvm.tirx import PrimFunc

from compiler.lowering.gpu import wmma_intrinsics
from search.sketches.intrinsics import Intrinsic, offer
from system.plugins import INTRINSICS, extension, extensions, is_plugins

PACKAGE = "tvm.s_tir.tensor_intrin"
VNNI = "dot_16x4_vnni"
NARROW_VNNI = "dot_8x4_vnni"
X86, ARM, CUDA = ("x86",), ("dot_product_common", "arm_cpu"), ("cuda",)
FILES = {
    VNNI: X86,
    "dot_4x4_i8i8s32_sdot": ARM,
    "dot_4x4_u8u8u32_udot": ARM,
    "dot_4x4_u8u8i32_hdot": ARM,
    "dot_4x4_i8i8s32_neon": ARM,
}


@dataclass(frozen=True)
class PluginIntrinsic:
    """An intrinsic that a plug-in adds: what the search knows of it, what it computes, and the code that
    computes it. Its name is replaced by one that says which plug-in it takes."""

    intrinsic: Intrinsic
    description: PrimFunc
    implementation: PrimFunc


_lock = Lock()
_registered: set[str] = set()


def offer_plugins() -> None:
    """Have the search use the intrinsics of plug-ins. Raises PluginError."""
    for one in extensions(INTRINSICS):
        offer(replace(one.value.intrinsic, name=one.full_name))


def register(name: str) -> None:
    """Register an intrinsic with TVM. For one that the search doesn't use, all of TVM's are imported. Raises
    PluginError for one of a plug-in that isn't installed."""
    with _lock:
        if name in _registered:
            return
        # For each function that is defined in TVMScript, TVM reads the source of every frame of the stack. A
        # thread of its own has a short stack.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(_register, name).result()
        _registered.add(name)


def _register(name: str) -> None:
    if name in (VNNI, NARROW_VNNI):
        from compiler.lowering import vnni
    if wmma_intrinsics.is_missing(name):
        _import(CUDA)
        wmma_intrinsics.register(name, sys.modules[f"{PACKAGE}.cuda"])
    elif is_plugins(name):
        added = extension(INTRINSICS, name).value
        TensorIntrin.register(name, added.description, added.implementation)
    elif name == NARROW_VNNI:
        vnni.register_narrow(name)
    elif TensorIntrin.get(name, allow_missing=True) is None:
        _import(CUDA if name.startswith("wmma_") else FILES.get(name, ()))
    if name == VNNI:
        vnni.replace(name)


def register_used(trace: Sequence[Any]) -> list[PrimFunc]:
    """Register the intrinsics that a parsed trace tensorizes with; return what implements them."""
    instructions, _ = trace
    names = {attributes[0] for kind, _, attributes, _ in instructions if kind == "Tensorize"}
    for name in sorted(names):
        register(name)
    return [TensorIntrin.get(name).impl for name in sorted(names)]


def _import(files: tuple[str, ...]) -> None:
    """Import these files of TVM's package, or the whole package if they aren't where they are expected.

    They get their usual module names, so that importing the package later doesn't run them again.
    """
    folder = Path(tvm.__file__).parent / "s_tir" / "tensor_intrin"
    if not files or not all((folder / f"{file}.py").exists() for file in files):
        importlib.import_module(PACKAGE)
        return
    for file in files:
        name = f"{PACKAGE}.{file}"
        spec = importlib.util.spec_from_file_location(name, folder / f"{file}.py")
        if name in sys.modules or spec is None or spec.loader is None:
            continue
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
