"""TVM's descriptions of special instructions, imported when a schedule needs them.

Importing `tvm.s_tir.tensor_intrin` imports those of every kind of device, which takes ten seconds; one file
of it takes a tenth of one.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import Any

import tvm
from tvm.s_tir import TensorIntrin

from compiler.lowering import vnni

PACKAGE = "tvm.s_tir.tensor_intrin"
VNNI = "dot_16x4_vnni"
X86, ARM, CUDA = ("x86",), ("dot_product_common", "arm_cpu"), ("cuda",)
FILES = {
    VNNI: X86,
    "dot_4x4_i8i8s32_sdot": ARM,
    "dot_4x4_u8u8u32_udot": ARM,
    "dot_4x4_u8u8i32_hdot": ARM,
    "dot_4x4_i8i8s32_neon": ARM,
}
_lock = Lock()
_registered: set[str] = set()


def register(name: str) -> None:
    """Makes TVM know an intrinsic; one that the search doesn't use is looked for among all of TVM's."""
    with _lock:
        if name in _registered:
            return
        if TensorIntrin.get(name, allow_missing=True) is None:
            _import(CUDA if name.startswith("wmma_") else FILES.get(name, ()))
        if name == VNNI:
            vnni.replace(name)
        _registered.add(name)


def register_used(trace: Iterable[Any]) -> None:
    """Those that a trace, as `json.loads` gives it, tensorizes with."""
    for step in next(iter(trace), ()):
        if step[0] == "Tensorize":
            register(str(step[2][0]))


def _import(files: tuple[str, ...]) -> None:
    """Only these files where TVM is laid out as expected, the whole package elsewhere.

    They are known under their own names, so that importing the package later doesn't run them again.
    """
    folder = Path(tvm.__file__).parent / "s_tir" / "tensor_intrin"
    if not files or not all((folder / f"{file}.py").exists() for file in files):
        importlib.import_module(PACKAGE)
        return
    for file in files:
        _import_file(f"{PACKAGE}.{file}", folder / f"{file}.py")


def _import_file(name: str, path: Path) -> None:
    spec = importlib.util.spec_from_file_location(name, path)
    if name in sys.modules or spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
