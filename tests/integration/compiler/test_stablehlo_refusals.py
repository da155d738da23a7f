"""Unsupported StableHLO and damaged files are rejected in one line that says what and where."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import pytest

from compiler.importing.formats.reading import read_model
from compiler.importing.spec import ModelError
from compiler.verifying.imported import verify_file
from tests.stablehlo_models import exported, exported_text, polymorphic, serialized

jnp, lax = jax.numpy, jax.lax

TARGET = '{"kind":"llvm","num-cores":1}'
X = np.ones((4, 4), np.float32)


def function(body: str, kind: str = "tensor<2x4xf32>", result: str = "") -> bytes:
    return f"func.func @main(%x: {kind}) -> {result or kind} {{\n{body}\n}}".encode()


MATRIX = "tensor<2x2xf32>"
RETURN = "return %y : tensor<2x4xf32>"
LOOP = """
  %y = stablehlo.while(%a = %x) : tensor<2x4xf32>
  cond { %t = stablehlo.constant dense<true> : tensor<i1>
    stablehlo.return %t : tensor<i1> }
  do { stablehlo.return %a : tensor<2x4xf32> }
"""
TEXTS: Mapping[str, tuple[bytes, str]] = {
    "another dialect": (
        function(f'%y = "foo.bar"(%x) : (tensor<2x4xf32>) -> tensor<2x4xf32>\n{RETURN}'),
        "operation foo.bar at line 2 can't be imported: it isn't supported: leave it out",
    ),
    "a kernel": (
        function(f"%y = stablehlo.custom_call @evil(%x) : (tensor<2x4xf32>) -> tensor<2x4xf32>\n{RETURN}"),
        "operation stablehlo.custom_call at line 2 can't be imported: it calls 'evil', which the program",
    ),
    "random numbers": (
        function(
            "%s = stablehlo.constant dense<1> : tensor<2xui64>\n"
            "%n, %y = stablehlo.rng_bit_generator %s, algorithm = DEFAULT"
            " : (tensor<2xui64>) -> (tensor<2xui64>, tensor<2x4xui32>)\n"
            "return %y : tensor<2x4xui32>",
            result="tensor<2x4xui32>",
        ),
        "operation stablehlo.rng_bit_generator at line 3 can't be imported: it draws random numbers, which a",
    ),
    "a function that calls itself": (
        function(f"%y = call @main(%x) : (tensor<2x4xf32>) -> tensor<2x4xf32>\n{RETURN}"),
        "nested more than 64 deep",
    ),
    "a loop without an end": (function(LOOP + RETURN), "stand for more than 50000 operations"),
    "branches": (
        function("cf.br ^bb1\n^bb1:\nreturn %x : tensor<2x4xf32>"),
        "it branches between blocks of operations",
    ),
    "an unknown rank": (function("return %x : tensor<*xf32>", "tensor<*xf32>"), "only tensors are"),
    "complex numbers": (
        function("return %x : tensor<2xcomplex<f32>>", "tensor<2xcomplex<f32>>"),
        "input 'input0' can't be read: elements of the type complex<f32> aren't supported: compute real",
    ),
    "narrow floats": (
        function("return %x : tensor<2xf8E4M3FN>", "tensor<2xf8E4M3FN>"),
        "elements of the type f8E4M3FN aren't supported: convert them to one of f16",
    ),
    "other devices": (
        function(
            "%y = stablehlo.partition_id : tensor<ui32>\nreturn %y : tensor<ui32>", result="tensor<ui32>"
        ),
        "operation stablehlo.partition_id at line 2 can't be imported: it communicates with other devices",
    ),
    "a matrix in factors": (
        function(f"%y = stablehlo.cholesky %x : {MATRIX}\nreturn %y : {MATRIX}", MATRIX),
        "operation stablehlo.cholesky at line 2 can't be imported: decompositions of matrices aren't",
    ),
    "too much": (
        function(
            "%y = stablehlo.broadcast_in_dim %x, dims = [0, 1]"
            " : (tensor<2x4xf32>) -> tensor<2x4x99999x99999xf32>\nreturn %y : tensor<2x4x99999x99999xf32>",
            result="tensor<2x4x99999x99999xf32>",
        ),
        "the limit is 4294967296",
    ),
    "an empty output": (
        function(
            "%y = stablehlo.constant dense<> : tensor<0xf32>\nreturn %y : tensor<0xf32>",
            result="tensor<0xf32>",
        ),
        "output 'output0' is empty",
    ),
    "weights elsewhere": (
        function("%y = stablehlo.constant dense_resource<w> : tensor<2x4xf32>\n" + RETURN),
        "its elements aren't in the text of the program",
    ),
    "no main": (b"module @m {}", "has no function called main"),
    "a declaration": (
        b"func.func private @main() -> tensor<2xf32>",
        "has no function called main with a body",
    ),
    "a function that is only declared": (
        b"func.func private @g(tensor<2x4xf32>) -> tensor<2x4xf32>\n"
        + function(f"%y = call @g(%x) : (tensor<2x4xf32>) -> tensor<2x4xf32>\n{RETURN}"),
        "it calls a function 'g', which the program doesn't define",
    ),
    "no results": (b"func.func @main() { return }", "with a body and results"),
    "a mistake": (function("return %z : tensor<2x4xf32>"), "can't be parsed .*undeclared SSA value"),
    "wrong types": (
        function("%y = stablehlo.add %x, %x : tensor<2x5xf32>\nreturn %y : tensor<2x5xf32>"),
        "can't be parsed",
    ),
    "half a text": (b"module @m { func.func", "can't be parsed"),
    "bytes": (b"module \xff\xfe\x00", "can't be parsed"),
    "a later version": (b"ML\xefR\x0dStableHLO_v99.0.0\x00\x01", "newer than the scheduler's jaxlib"),
}


@pytest.mark.parametrize("name", TEXTS)
def test_texts_are_refused(name: str) -> None:
    data, says = TEXTS[name]
    with pytest.raises(ModelError, match=says) as raised:
        read_model(data, {}).to_relax()
    assert "\n" not in str(raised.value)


FUNCTIONS: Mapping[str, tuple[Callable[[Any], Any], str]] = {
    "cholesky": (jnp.linalg.cholesky, "operation stablehlo.c.* at '.*cholesky"),
    "fft": (lambda x: jnp.abs(jnp.fft.fft(x)), "at 'jit.*fft.*elements of the type complex<f32>"),
    "a loop of the data": (
        lambda x: lax.while_loop(lambda y: y.sum() < 9, lambda y: y * 2, x),
        "operation stablehlo.while at .* the data decides how often the loop runs",
    ),
    "windows of two tensors": (
        lambda x: lax.reduce_window(
            (x, x),
            (0.0, 0.0),
            lambda a, b: (a[0] + b[0], lax.max(a[1], b[1])),
            (2, 2),
            (2, 2),
            "VALID",
        ),
        "operation stablehlo.reduce_window at .* of one tensor are computed in windows",
    ),
    "reduced by a polynomial": (
        lambda x: lax.reduce(x, 0.0, lambda a, b: a + b * b, (0,)),
        "only sums, products, extremes",
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_unsupported_operation_is_refused_by_name(name: str) -> None:
    made, says = FUNCTIONS[name]
    with pytest.raises(ModelError, match=says) as raised:
        read_model(exported(made, X), {}).to_relax()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("form", [exported, exported_text, serialized])
def test_a_damaged_program_is_a_model_error(form: Callable[..., bytes]) -> None:
    """The data that jax.export writes after the program isn't read."""
    data = form(lambda x: jnp.tanh(x @ X), X)
    for end in range(40, len(data) // 2, len(data) // 20):
        with pytest.raises(ModelError):
            read_model(data[:end], {}).to_relax()


def test_without_jaxlib_the_next_step_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jaxlib.mlir.ir", None)
    with pytest.raises(ModelError, match=r"pip install 'tunefarm\[stablehlo\]'"):
        read_model(function("return %x : tensor<2x4xf32>"), {})


def test_inputs_have_the_names_of_parameters() -> None:
    file = read_model(exported(lambda params, x: x @ params["w"] + params["b"], {"w": X, "b": X[0]}, X), {})
    assert [spec.name for spec in file.inputs] == ["params['b']", "params['w']", "x"]
    assert [spec.name for spec in file.to_relax().outputs] == ["result"]


def test_dynamic_dimensions_are_given_a_shape() -> None:
    """Slices of them are calls of one function with other constants."""
    data = polymorphic(lambda x, y: jax.nn.softmax(jnp.concatenate([x @ y, x[:, :2]], 1)), "(b, 4)", "(4, t)")
    with pytest.raises(
        ModelError, match=r"input 'x' has dynamic dimensions \(\?,4\): give its shape with --shape x="
    ):
        read_model(data, {})
    with pytest.raises(ModelError, match="input 'y' has dynamic dimensions"):
        read_model(data, {"x": (3, 4)})
    with pytest.raises(ModelError, match=r"shape \(3,5\) doesn't fit input 'x'"):
        read_model(data, {"x": (3, 5), "y": (4, 6)})
    file = read_model(data, {"x": (3, 4), "y": (4, 6)})
    assert file.to_relax().outputs[0].shape == (3, 8)
    assert len(list(verify_file(file, TARGET, TARGET))) >= 2


def test_a_function_of_open_dimensions_that_calls_itself_is_refused() -> None:
    data = function(
        "%y = call @main(%x) : (tensor<?xf32>) -> tensor<?xf32>\nreturn %y : tensor<?xf32>", "tensor<?xf32>"
    )
    with pytest.raises(ModelError, match="calls the function 'main', which is main"):
        read_model(data, {"input0": (3,)})


def test_shapes_that_contradict_each_other_are_refused() -> None:
    data = polymorphic(lambda x, y: x + y, "(b,)", "(b,)")
    with pytest.raises(ModelError, match="don't follow from those that its inputs are given"):
        read_model(data, {"x": (3,), "y": (4,)})
