"""TVM is imported faster, and offers the same functions."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import tvm_ffi
from tvm_ffi import registry

from compiler.tvm_import import TvmFinder

LISTED = """
import json, sys
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
import tvm
assert "TvmFinder" not in [type(finder).__name__ for finder in sys.meta_path]
modules = {name: module for name, module in sys.modules.items() if name.endswith("._ffi_api")}
print(json.dumps([len(made), {name: sorted(vars(module)) for name, module in modules.items()}]))
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
    assert finder not in sys.meta_path


@pytest.mark.slow
def test_modules_of_tvm_have_the_same_functions_after_fewer_calls() -> None:
    def listed(how: str) -> tuple[int, dict[str, list[str]]]:
        command = [sys.executable, "-c", LISTED, how]
        calls, names = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        return calls, names

    (few, faster), (many, plain) = listed("faster"), listed("plain")
    assert faster == plain
    assert sum(map(len, plain.values())) > 1500
    assert few < many / 4
