"""Passes that have nothing to change return the functions that they get."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tvm
import tvm_ffi
from tvm.tirx import Evaluate, For, PrimFunc, SeqStmt

from compiler.codegen.element_types import compute_in_known_types
from compiler.codegen.nan_propagation import propagate_nan
from compiler.codegen.rewrite import map_body, with_body
from compiler.codegen.stack_buffers import keep_on_stack
from compiler.codegen.vector_math import expand_math
from compiler.tir_nodes import statements_of
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


def test_a_function_gets_a_body_around_its_own(product: PrimFunc) -> None:
    around = SeqStmt([Evaluate(0), *statements_of(product.body), Evaluate(1)])
    changed = with_body(product, around)
    assert changed.body.same_as(around)
    assert list(changed.params) == list(product.params)
    assert changed.attrs["target"] == product.attrs["target"]
    assert tvm_ffi.structural_equal(changed, product.with_body(around))
    assert with_body(product, product.body).same_as(product)


def test_statements_are_those_of_a_sequence_or_one() -> None:
    first, second = Evaluate(0), Evaluate(1)
    assert [each.value.value for each in statements_of(SeqStmt([first, second]))] == [0, 1]
    [only] = statements_of(first)
    assert only.same_as(first)
