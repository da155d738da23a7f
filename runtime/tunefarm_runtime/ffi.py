"""`tvm_ffi`, without PyTorch where the process hasn't imported that.

tvm_ffi imports PyTorch wherever it is installed. That takes a second and 200 MB. Models run without it:
PyTorch's tensors have DLPack.
"""

from __future__ import annotations

import sys
import threading
from importlib.abc import MetaPathFinder
from typing import Any

__all__ = ["tvm_ffi"]

TORCH = "torch"


class _WithoutTorch(MetaPathFinder):
    """Finds no PyTorch for the thread that made it."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, fullname: str, path: object, target: object = None) -> Any:
        if fullname == TORCH and threading.get_ident() == self._thread:
            raise ModuleNotFoundError("tvm_ffi is imported without PyTorch", name=fullname)
        return None


if TORCH in sys.modules:
    import tvm_ffi
else:
    _finder = _WithoutTorch()
    sys.meta_path.insert(0, _finder)
    try:
        import tvm_ffi
    finally:
        sys.meta_path.remove(_finder)
