"""Functions of JAX as files of StableHLO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def exported(function: Callable[..., Any], *inputs: Any, **options: Any) -> bytes:
    """Return the portable artifact of a function, for inputs of these shapes."""
    return bytes(_exported(function, *inputs, **options).mlir_module_serialized)


def serialized(function: Callable[..., Any], *inputs: Any) -> bytes:
    """Return what jax.export.deserialize reads."""
    return bytes(_exported(function, *inputs).serialize())


def exported_text(function: Callable[..., Any], *inputs: Any) -> bytes:
    """Return the text of a function as it is lowered, in operations of a higher level."""
    jax = pytest.importorskip("jax")
    return str(jax.jit(function).lower(*map(_described, inputs)).as_text()).encode()


def _exported(function: Callable[..., Any], *inputs: Any) -> Any:
    jax = pytest.importorskip("jax")
    return jax.export.export(jax.jit(function))(*map(_described, inputs))


def _described(array: Any) -> Any:
    jax = pytest.importorskip("jax")
    return jax.ShapeDtypeStruct(array.shape, array.dtype)
