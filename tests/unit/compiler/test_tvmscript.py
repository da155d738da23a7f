"""Defining a function in TVMScript doesn't read the source of the whole stack."""

from __future__ import annotations

import inspect
from types import FrameType
from typing import Any

import pytest
import tvm
from tvm.script import ir as I  # noqa: N812 - TVM's parser wants this name

from compiler.tvmscript import T


def test_few_frames_of_the_stack_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    found = inspect.getframeinfo
    asked: list[FrameType] = []

    def counted(frame: Any, context: int = 1) -> inspect.Traceback:
        asked.append(frame)
        return found(frame, context)

    monkeypatch.setattr(inspect, "getframeinfo", counted)
    size = 8

    @T.prim_func(s_tir=True)
    def doubled(a: T.handle, b: T.handle) -> None:
        source = T.match_buffer(a, (size,), "float32")
        result = T.match_buffer(b, (size,), "float32")
        for i in range(size):
            with T.sblock("double"):
                v = T.axis.remap("S", [i])
                result[v] = source[v] * T.float32(2)

    assert isinstance(doubled, tvm.tirx.PrimFunc)
    assert "(8,)" in doubled.script()
    # One frame each time TVM evaluates the decorator, although a test's stack has dozens of frames.
    assert len(asked) < 5


def test_functions_of_a_class_are_its_modules() -> None:
    @I.ir_module(s_tir=True)
    class Module:
        @T.prim_func(s_tir=True)
        def main(a: T.handle) -> None:  # noqa: N805 - a module's function has no self
            T.match_buffer(a, (4,), "float32")

    module: Any = Module
    assert [name.name_hint for name in module.functions] == ["main"]
