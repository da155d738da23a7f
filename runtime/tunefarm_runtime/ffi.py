"""Import `tvm_ffi` without PyTorch, unless the process has already imported PyTorch.

tvm_ffi imports PyTorch if it is installed, which takes a second and 200 MB. Models don't need that import,
because PyTorch's tensors support DLPack.
"""

from __future__ import annotations

import sys
import threading
from importlib.abc import MetaPathFinder
from typing import Any

__all__ = ["tvm_ffi"]

TORCH = "torch"


class _WithoutTorch(MetaPathFinder):
    """Makes imports of PyTorch fail in the thread that created it."""

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
