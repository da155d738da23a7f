"""Import TVM without listing its 2,000 global functions fifty times, one call for each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class TvmFinder(MetaPathFinder):
    """Prepares the import of TVM, and leaves it to other finders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "tvm":
            sys.meta_path.remove(self)
            _list_functions_once()
        return None


def _list_functions_once() -> None:
    """List TVM's global functions again only if there are more of them."""
    try:
        from tvm_ffi import registry
    except ModuleNotFoundError:
        return  # TVM isn't installed either, and its import says so

    names: list[str] = []

    def list_global_func_names() -> list[str]:
        nonlocal names
        name_of = registry.get_global_func("ffi.FunctionListGlobalNamesFunctor")()
        if name_of(-1) != len(names):
            names = [name_of(number) for number in range(name_of(-1))]
        return names

    registry.list_global_func_names = list_global_func_names


if "tvm" not in sys.modules:
    sys.meta_path.insert(0, TvmFinder())
