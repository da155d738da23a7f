"""What MLIR's types and attributes say, as numbers and arrays of Python and NumPy."""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.importing.spec import Shape
from compiler.importing.values import UnsupportedOperator, numpy_dtype

Array = NDArray[Any]
# NumPy's names of the element types that are read.
DTYPES = {
    "f16": "float16",
    "bf16": "bfloat16",
    "f32": "float32",
    "f64": "float64",
    "i1": "bool",
    **{f"i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}


def mlir(name: str) -> Any:
    """Return a module of MLIR's Python bindings, which jaxlib brings."""
    return importlib.import_module(f"jaxlib.mlir.{name}")


def tensor_type(kind: Any) -> tuple[Shape, str]:
    """Return the shape and the element type of a tensor. Raises UnsupportedOperator for any other type."""
    if not isinstance(kind, mlir("ir").RankedTensorType):
        raise UnsupportedOperator(f"values of the type {kind} aren't supported; only tensors are")
    if not kind.has_static_shape:
        raise UnsupportedOperator(
            f"values of the type {kind} aren't supported; only tensors of a static shape are"
        )
    element = str(kind.element_type)
    if element not in DTYPES:
        advice = (
            "compute real and imaginary parts as two tensors"
            if "complex" in element
            else f"convert them to one of {', '.join(DTYPES)}"
        )
        raise UnsupportedOperator(f"elements of the type {element} aren't supported: {advice}")
    return tuple(kind.shape), DTYPES[element]


def elements(attribute: Any) -> tuple[Array, Shape]:
    """Return the elements of a constant, and the shape that they broadcast to. Many equal elements are one
    element."""
    shape, dtype = tensor_type(attribute.type)
    if not isinstance(attribute, mlir("ir").DenseElementsAttr):
        raise UnsupportedOperator(
            "its elements aren't in the text of the program (dense<...>), but in a resource beside it: "
            "write the program with its constants in it"
        )
    if attribute.is_splat:
        one = np.array(attribute.get_splat_value().value, numpy_dtype(dtype))
        return one.reshape((1,) * len(shape)), shape
    if dtype != "bfloat16":
        return np.array(attribute, order="C"), shape
    # NumPy's view of an attribute lacks this type. Its text has numbers, or the digits of all bytes.
    text = str(attribute).partition("dense<")[2].rpartition("> : ")[0].strip('"')
    if text.startswith("0x"):
        return np.frombuffer(bytes.fromhex(text[2:]), numpy_dtype(dtype)).reshape(shape), shape
    words = [each.strip(" []") for each in text.split(",")] if math.prod(shape) else []
    # Infinities and NaN are written as their bits.
    numbers = [
        np.uint16(int(word, 16)).view(numpy_dtype(dtype)) if word.startswith("0x") else word for word in words
    ]
    return np.array([float(each) for each in numbers]).astype(numpy_dtype(dtype)).reshape(shape), shape


def ints(op: Any, name: str, default: Any = ()) -> list[int]:
    """Return an attribute that is an array of integers, or of booleans; the default if it was left out."""
    return list(map(int, op.attributes[name])) if name in op.attributes else list(map(int, default))


def pairs(op: Any, name: str, count: int) -> list[tuple[int, int]]:
    """Return an attribute that is a matrix of two integers a row; zeros if it was left out."""
    if name not in op.attributes:
        return [(0, 0)] * count
    return [(int(low), int(high)) for low, high in np.array(op.attributes[name]).reshape(count, 2)]


def number(op: Any, name: str, default: int | None = None) -> int:
    if name not in op.attributes and default is not None:
        return default
    return int(op.attributes[name].value)
