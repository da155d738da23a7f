"""Register TVM's tensor intrinsics when a schedule needs them.

Importing `tvm.s_tir.tensor_intrin` loads the intrinsics of all devices and takes three seconds. Importing the
file of a CPU takes a tenth of a second.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import tvm
from tvm.s_tir import TensorIntrin
from tvm.tirx import PrimFunc

import compiler.tvmscript  # noqa: F401 - the intrinsics are functions in TVMScript
from compiler.lowering import arm_dot_products
from compiler.lowering.gpu import wgmma_intrinsics, wmma_intrinsics
from search.sketches.block_products import block_product
from search.sketches.intrinsics import BY_NAME, Intrinsic, register_intrinsic
from search.sketches.tile_products import tile_product
from system.plugins import INTRINSICS, extension, extensions, is_plugins

PACKAGE = "tvm.s_tir.tensor_intrin"
VNNI = "dot_16x4_vnni"
NARROW_VNNI = ("dot_8x4_vnni", "dot_8x4_avx_vnni")
# By the instruction that ends an intrinsic's name: the module that registers the intrinsic.
MODULES = {
    **dict.fromkeys(("dpbf16ps", "bfdot"), "compiler.lowering.bfloat16_dot_products"),
    "pmaddwd": "compiler.lowering.widened_dot_products",
    "pmaddubsw": "compiler.lowering.narrow_dot_products",
}
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
    """An intrinsic of a plug-in: its description for the search, the computation that it replaces, and its
    implementation. Its name is prefixed with the plug-in's name.
    """

    intrinsic: Intrinsic
    description: PrimFunc
    implementation: PrimFunc


_lock = Lock()
_registered: set[str] = set()


def register_plugins() -> None:
    """Offer the intrinsics of installed plug-ins to the search. Raises PluginError."""
    for one in extensions(INTRINSICS):
        register_intrinsic(replace(one.value.intrinsic, name=one.full_name))


def register(name: str) -> None:
    """Register an intrinsic with TVM. If the search doesn't know the name, import all of TVM's intrinsics.
    Raises PluginError if the intrinsic belongs to a plug-in that isn't installed.
    """
    with _lock:
        if name in _registered:
            return
        _register(name)
        _registered.add(name)


def _register(name: str) -> None:
    if (product := block_product(name)) is not None:
        from compiler.lowering import block_products

        block_products.register(product)
        return
    if (tiles := tile_product(name)) is not None:
        from compiler.lowering import tile_products

        tile_products.register(tiles)
        return
    if name in (VNNI, *NARROW_VNNI):
        from compiler.lowering import vnni_dot_products as vnni
    module = MODULES.get(name.rpartition("_")[2])
    if module is not None and name in BY_NAME:
        importlib.import_module(module).register(BY_NAME[name])
    elif name in BY_NAME and BY_NAME[name].tall > 1:
        from compiler.lowering import matrix_products

        matrix_products.register(BY_NAME[name])
    elif wmma_intrinsics.is_missing(name) or wgmma_intrinsics.is_warpgroups(name):
        _import(CUDA)
        defined = wgmma_intrinsics if wgmma_intrinsics.is_warpgroups(name) else wmma_intrinsics
        defined.register(name, sys.modules[f"{PACKAGE}.cuda"])
    elif is_plugins(name):
        added = extension(INTRINSICS, name).value
        TensorIntrin.register(name, added.description, added.implementation)
    elif name in NARROW_VNNI:
        vnni.register_narrow(name)
    elif TensorIntrin.get(name, allow_missing=True) is None:
        _import(CUDA if name.startswith("wmma_") else FILES.get(name, ()))
    if name == VNNI:
        vnni.replace(name)
    elif name in arm_dot_products.INSTRUCTIONS:
        arm_dot_products.replace(BY_NAME[name])


def register_used(trace: Sequence[Any]) -> list[PrimFunc]:
    """Register the intrinsics that a parsed trace uses; return their implementations."""
    instructions, _ = trace
    names = {attributes[0] for kind, _, attributes, _ in instructions if kind == "Tensorize"}
    for name in sorted(names):
        register(name)
    return [TensorIntrin.get(name).impl for name in sorted(names)]


def _import(files: tuple[str, ...]) -> None:
    """Import these files of TVM's package, or the whole package if the files aren't found.

    Each gets its usual module name, so a later import of the package doesn't run it again.
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
