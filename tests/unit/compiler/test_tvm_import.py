"""TVM is imported faster, and offers the same functions and operators."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import tvm
import tvm_ffi
from tvm_ffi import registry

from compiler.tvm_import import TvmFinder

LISTED = """
import json, sys
import tvm_ffi
from tvm_ffi import registry
if sys.argv[1] == "faster":
    import compiler
made = []
functor = registry.get_global_func("ffi.FunctionListGlobalNamesFunctor")
find = registry.get_global_func
def counted(name, *more):
    if name != "ffi.FunctionListGlobalNamesFunctor":
        return find(name, *more)
    def list_names():
        name_of = functor()
        def counting(number):
            made.append(number)
            return name_of(number)
        return counting
    return list_names
registry.get_global_func = counted
errors = []
append = tvm_ffi.error._with_append_backtrace
def counting_errors(error, backtrace):
    errors.append(str(error))
    return append(error, backtrace)
tvm_ffi.core._WITH_APPEND_BACKTRACE = counting_errors
import tvm
missing = len(errors)
assert "TvmFinder" not in [type(finder).__name__ for finder in sys.meta_path]
modules = {name: module for name, module in sys.modules.items() if name.endswith("._ffi_api")}
functions = {name: sorted(vars(module)) for name, module in modules.items()}
names = sorted(map(str, tvm.ir.Op.list_op_names()))
printed = {name: str(tvm.ir.Op.get(name).get_attr("TScriptPrinterName")) for name in names}
keys = map(str, registry.get_registered_type_keys())
classes = {key: registry.core._object_type_key_to_index(key) for key in keys}
print(json.dumps([len(made), missing, [functions, printed, classes]]))
"""


def test_a_function_that_is_registered_later_is_listed() -> None:
    assert "tunefarm.tests.later" not in registry.list_global_func_names()
    tvm_ffi.register_global_func("tunefarm.tests.later", lambda: None)
    try:
        assert "tunefarm.tests.later" in registry.list_global_func_names()
    finally:
        tvm_ffi.registry.remove_global_func("tunefarm.tests.later")
    assert "tunefarm.tests.later" not in registry.list_global_func_names()


def test_a_missing_tvm_is_reported_on_import(monkeypatch: pytest.MonkeyPatch) -> None:
    finder = TvmFinder()
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    monkeypatch.setitem(sys.modules, "tvm_ffi", None)
    assert finder.find_spec("tvm", None) is None


@pytest.mark.slow
def test_tvm_is_the_same_after_fewer_calls_and_without_an_error_in_its_library() -> None:
    def imported(how: str) -> tuple[int, int, list[dict[str, Any]]]:
        command = [sys.executable, "-c", LISTED, how]
        calls, errors, contents = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        return calls, errors, contents

    few, no_errors, faster = imported("faster")
    many, errors, plain = imported("plain")
    functions, printed, types = plain
    assert faster == plain
    assert sum(map(len, functions.values())) > 1500
    assert len(printed) > 500
    assert len(types) > 500
    assert few < many / 4
    assert no_errors == 0 < errors


def test_a_missing_operator_and_a_missing_type_are_errors() -> None:
    with pytest.raises(AttributeError, match=r"Operator relax\.nowhere is not registered"):
        tvm.ir.Op.get("relax.nowhere")
    with pytest.raises(ValueError, match=r"tunefarm\.Nowhere"):
        tvm_ffi.register_object("tunefarm.Nowhere")(type("Nowhere", (tvm_ffi.Object,), {"__slots__": ()}))
