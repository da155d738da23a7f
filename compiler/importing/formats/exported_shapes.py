"""Give the dynamic dimensions of PyTorch's exported programs their sizes.

PyTorch evaluates the texts that describe such dimensions. So `is_extent` and `is_guard` allow only sums and
products of sizes. A program with sizes is exported again: the import then meets only static shapes.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from compiler.importing.spec import ModelError, Shape

_MAX_TEXT = 1000
_SYMBOL = r"Symbol\('s\d{1,6}'(, (positive|integer)=True)*\)"
_EXTENT = re.compile(
    rf"({_SYMBOL}|Pow\({_SYMBOL}, Integer\([2-4]\)\)|Integer\(-?\d{{1,18}}\)|(Add|Mul|FloorDiv|Mod)\(|\)|, )+"
)
_GUARD = re.compile(
    r"(L(\['?\w+'?\])+\.size\(\)\[\d\]|\d{1,18}|[<>=!]=|[<>()+%-]|(?<!\*)\*(?!\*)|//| |and |or |not )+"
)


def is_extent(text: object) -> bool:
    """Return whether a text is a formula of sizes, such as `Mul(Integer(2), Symbol('s0', integer=True))`."""
    return isinstance(text, str) and len(text) <= _MAX_TEXT and bool(_EXTENT.fullmatch(text))


def is_guard(text: str) -> bool:
    """Return whether a text compares sizes of inputs, such as `L['x'].size()[1] <= 32`."""
    return len(text) <= _MAX_TEXT and bool(_GUARD.fullmatch(text))


def dimensions_of(program: Any) -> dict[str, tuple[int | str, ...]]:
    """Return the dimensions of each tensor that a program takes: an extent, or a dynamic one's formula."""
    return {
        name: tuple(dim if type(dim) is int else str(dim) for dim in value.shape)
        for name, value in _taken(program).items()
        if hasattr(value, "shape")
    }


def example_shapes(program: Any) -> dict[str, Shape]:
    """Return the shapes of the inputs with which a program was exported."""
    return {
        name: tuple(dim if type(dim) is int else int(dim.node.hint or 2) for dim in value.shape)
        for name, value in _taken(program).items()
        if hasattr(value, "shape")
    }


def with_sizes(program: Any, shapes: Mapping[str, Shape]) -> Any:
    """Return a program with static shapes. `shapes` has the shapes of inputs with dynamic dimensions. Inputs
    that share their dimensions may be left out.

    Raises ModelError, and PyTorch's exceptions.
    """
    dimensions = dimensions_of(program)
    if all(isinstance(dim, int) for dims in dimensions.values() for dim in dims):
        return program
    torch = importlib.import_module("torch")
    taken = _taken(program)
    sizes = _sizes(program, dimensions, shapes)
    made = []
    for name, value in taken.items():
        if name not in dimensions:
            raise ModelError(
                f"input '{name}' of the exported program is no tensor; only tensors are supported"
            )
        extents = [
            dim if type(dim) is int else _extent(name, dimensions[name], dim.node.expr, sizes)
            for dim in value.shape
        ]
        if name in shapes and tuple(shapes[name]) != tuple(extents):
            raise ModelError(
                f"input '{name}' has the dimensions {_text(dimensions[name])} and can't have the shape "
                f"{tuple(shapes[name])}: give each dynamic dimension one size, and keep the others"
            )
        made.append(torch.zeros(extents, dtype=value.dtype))
    arguments, keywords = torch.utils._pytree.tree_unflatten(made, program.call_spec.in_spec)
    with torch.no_grad():
        return torch.export.export(program.module(check_guards=False), arguments, keywords)


def _taken(program: Any) -> dict[str, Any]:
    """Return the values that a program takes, by their names, in their order."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    return {str(name): values.get(name) for name in program.graph_signature.user_inputs}


def _sizes(
    program: Any, dimensions: Mapping[str, Sequence[int | str]], shapes: Mapping[str, Shape]
) -> dict[str, int]:
    """Return the size of each symbol that a given shape fixes. Raises ModelError."""
    limits = {str(symbol): limit for symbol, limit in program.range_constraints.items()}
    sizes: dict[str, int] = {}
    for name, dims in dimensions.items():
        shape = shapes.get(name, ())
        if name in shapes and len(shape) != len(dims):
            raise ModelError(
                f"input '{name}' has {len(dims)} dimensions, and {tuple(shape)} has {len(shape)}: give it "
                "another shape"
            )
        for dim, extent in zip(dims, shape, strict=False):
            if not isinstance(dim, str):
                continue
            sizes.setdefault(dim, extent)
            limit = limits.get(dim)
            if limit is not None and not max(1, limit.lower) <= extent <= limit.upper:
                raise ModelError(
                    f"dimension {dim} of input '{name}' can't be {extent}: the program was exported for "
                    f"{max(1, limit.lower)} to {limit.upper}"
                )
    return sizes


def _extent(name: str, dims: Sequence[int | str], formula: Any, sizes: Mapping[str, int]) -> int:
    """Return the extent of a dynamic dimension. Raises ModelError for an open one."""
    if str(formula) in sizes:
        return sizes[str(formula)]
    symbols = {symbol: sizes.get(str(symbol)) for symbol in formula.free_symbols}
    if None in symbols.values():
        raise ModelError(
            f"input '{name}' has dynamic dimensions {_text(dims)}: give its shape with --shape {name}=..."
        )
    return int(formula.subs(symbols))


def _text(dims: Sequence[int | str]) -> str:
    return f"({', '.join(map(str, dims))})"
