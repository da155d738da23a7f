"""Import TVM in half the time.

TVM lists its 2,000 global functions fifty times, with one call for each. It also looks up types and operators
that its library doesn't have, and catches the errors. The first of these errors reads the symbols of all
libraries, which takes 200 ms, and each of the hundred others makes a backtrace.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class TvmFinder(MetaPathFinder):
    """Prepares the import of TVM, and leaves it to other finders."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "tvm":
            _prepare_registry()
        elif fullname == "tvm.tirx":
            sys.meta_path.remove(self)
            _fail_without_backtrace(sys.modules["tvm.ir._ffi_api"])
        return None


def _prepare_registry() -> None:
    try:
        from tvm_ffi import registry
    except ModuleNotFoundError:
        return  # TVM isn't installed either, and its import says so
    _list_functions_once(registry)
    _find_only_registered_types(registry)


def _list_functions_once(registry: Any) -> None:
    """List TVM's global functions again only if there are more of them."""
    names: list[str] = []

    def list_global_func_names() -> list[str]:
        nonlocal names
        name_of = registry.get_global_func("ffi.FunctionListGlobalNamesFunctor")()
        if name_of(-1) != len(names):
            names = [name_of(number) for number in range(name_of(-1))]
        return names

    registry.list_global_func_names = list_global_func_names


def _find_only_registered_types(registry: Any) -> None:
    """Return None for a type that isn't registered, as TVM does after an error."""
    known: set[str] = set()
    find = registry.core._object_type_key_to_index

    def find_registered(type_key: str) -> int | None:
        if type_key not in known:
            known.update(map(str, registry.get_registered_type_keys()))
        return find(type_key) if type_key in known else None

    registry.core._object_type_key_to_index = find_registered


def _fail_without_backtrace(api: Any) -> None:
    """Raise in Python if an operator is missing, and don't give an attribute the value that it has. `api` is
    the module with TVM's functions for operators.
    """
    get_op, register_attribute = api.GetOp, api.RegisterOpAttr
    known: set[str] = set()

    def get_known_op(name: str) -> Any:
        if name not in known:
            names = api.ListOpNames()
            if len(names) != len(known):
                known.update(map(str, names))
        if name not in known:
            raise AttributeError(f"Operator {name} is not registered")
        return get_op(name)

    def register_new_attribute(op_name: str, key: str, value: Any, level: int) -> None:
        if op_name not in known or api.OpGetAttr(get_op(op_name), key) != value:
            register_attribute(op_name, key, value, level)

    api.GetOp, api.RegisterOpAttr = get_known_op, register_new_attribute


if "tvm" not in sys.modules:
    sys.meta_path.insert(0, TvmFinder())
