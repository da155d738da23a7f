"""Passes that have nothing to change return the functions that they get."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm
from tvm.tirx import For, PrimFunc

from compiler.codegen.element_types import compute_in_known_types
from compiler.codegen.nan_propagation import propagate_nan
from compiler.codegen.rewrite import map_body
from compiler.codegen.stack_buffers import keep_on_stack
from compiler.codegen.vector_math import expand_math
from tests.register_tiles import register_tile

NATIVE = tvm.target.Target("llvm")


@pytest.fixture(scope="module")
def product() -> PrimFunc:
    return register_tile(4, 32, 16)["main"].with_attr("target", NATIVE)


@pytest.mark.parametrize(
    "apply",
    [
        compute_in_known_types,
        propagate_nan,
        keep_on_stack,
        lambda module: expand_math(module, NATIVE),
    ],
)
def test_a_function_without_changes_is_not_made_anew(
    product: PrimFunc, apply: Callable[[tvm.IRModule], tvm.IRModule]
) -> None:
    assert apply(tvm.IRModule({"main": product}))["main"].same_as(product)


def test_a_changed_function_keeps_its_parameters_and_attributes(product: PrimFunc) -> None:
    def annotated(loop: For) -> For:
        return For(loop.loop_var, loop.min, loop.extent, loop.kind, loop.body, annotations={"changed": 1})

    changed = map_body(product, (For, annotated))
    assert changed.script().count("changed") == product.script().count("for ")
    assert list(changed.params) == list(product.params)
    assert changed.attrs["target"] == product.attrs["target"]
