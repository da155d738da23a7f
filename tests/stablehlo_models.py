"""JAX functions as StableHLO files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax


def exported(function: Callable[..., Any], *inputs: Any) -> bytes:
    """Return the portable artifact of a function, for inputs of these shapes."""
    return bytes(_exported(function, *inputs).mlir_module_serialized)


def polymorphic(function: Callable[..., Any], *shapes: str) -> bytes:
    """Return the portable artifact of a function of floats whose shapes have open dimensions."""
    scope = jax.export.SymbolicScope()
    inputs = [
        jax.ShapeDtypeStruct(jax.export.symbolic_shape(shape, scope=scope), "float32") for shape in shapes
    ]
    return bytes(jax.export.export(jax.jit(function))(*inputs).mlir_module_serialized)


def serialized(function: Callable[..., Any], *inputs: Any) -> bytes:
    """Return the input of jax.export.deserialize."""
    return bytes(_exported(function, *inputs).serialize())


def exported_text(function: Callable[..., Any], *inputs: Any) -> bytes:
    """Return the text of a function as it is lowered, in operations of a higher level."""
    return str(jax.jit(function).lower(*_described(inputs)).as_text()).encode()


def _exported(function: Callable[..., Any], *inputs: Any) -> Any:
    return jax.export.export(jax.jit(function))(*_described(inputs))


def _described(inputs: Any) -> Any:
    return jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), inputs)
