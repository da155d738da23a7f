"""Pack constants without compiling a function for it, if packing only moves elements.

Schedules that differ in their tiles pack weights in different orders. A job would compile a function for each
order, and call it once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import tirx
from tvm.ir import TensorLoad, Var
from tvm.s_tir import SBlockRealize
from tvm.sym import Analyzer
from tvm.sym.iter_affine_map import IterMapLevel, IterMark, IterSplitExpr, detect_iter_map
from tvm.tirx import BufferStore, PrimFunc

from compiler.tir_nodes import find_all, num_bits

_ROOT = "root"
# NumPy has an integer of each of these sizes. Elements of any type are moved as such integers.
_INTEGER_BITS = (8, 16, 32, 64)


@dataclass(frozen=True)
class Permutations:
    """A function of tensors, called as the compiled function would be."""

    moves: tuple[_Move, ...]

    def __call__(self, *tensors: tvm.runtime.Tensor) -> None:
        for move in self.moves:
            parts = _elements(tensors[move.source]).reshape(move.parts).transpose(move.order)
            np.copyto(_elements(tensors[move.target]).reshape(parts.shape), parts)


@dataclass(frozen=True)
class _Move:
    """Splits the axes of the argument `source` into `parts`, and writes these in `order` to `target`.

    `source` and `target` are positions.
    """

    source: int
    target: int
    parts: tuple[int, ...]
    order: tuple[int, ...]


@dataclass(frozen=True)
class _Part:
    """A part of an axis: it takes `extent` values, and moves by `stride` in the axis from one to the next."""

    axis: int
    stride: int
    extent: int


def permutations_of(pack: PrimFunc) -> Permutations | None:
    """Return what a function of `split_packing` does. None if it does more than to move all elements of its
    arguments.

        packed[j // 8, k, j % 8] = weight[k, j]
    ->
        packed[...] = weight.reshape(K, J // 8, 8).transpose(1, 0, 2)
    """
    blocks = [each for each in find_all(pack.body, SBlockRealize) if each.block.name_hint != _ROOT]
    moves = [_move(pack.params, each) for each in blocks]
    found = tuple(move for move in moves if move is not None)
    return Permutations(found) if found and len(found) == len(moves) else None


def _move(params: Sequence[Var], realized: SBlockRealize) -> _Move | None:
    store = realized.block.body
    if not isinstance(store, BufferStore) or not isinstance(store.value, TensorLoad):
        return None
    read, domain = store.value, {axis.var: axis.dom for axis in realized.block.iter_vars}
    source, target = _position(params, read.source), _position(params, store.buffer)
    in_order = len(read.indices) == len(domain) and all(map(Var.same_as, read.indices, domain))
    if source is None or target is None or not in_order or num_bits(read.ty.dtype) not in _INTEGER_BITS:
        return None
    if not _begins_with_zero(store.indices, domain):
        return None
    indices = detect_iter_map(store.indices, domain, realized.predicate, IterMapLevel.Bijective).indices
    axes = list(domain)
    parts = [part for index in indices for split in index.args for part in _parts(split, axes)]
    if not _size(params[source]) == _size(params[target]) == math.prod(part.extent for part in parts):
        return None
    # The first axis first, and the outermost part of an axis first.
    order = sorted(range(len(parts)), key=lambda at: (parts[at].axis, -parts[at].stride))
    places = sorted(range(len(parts)), key=order.__getitem__)
    return _Move(source, target, tuple(parts[at].extent for at in order), tuple(places))


def _begins_with_zero(indices: Sequence[Any], domain: Mapping[Var, Any]) -> bool:
    """Return whether the first element stays first. TVM's detector ignores the 3 of `(i + 3) % 8`."""
    analyzer = Analyzer()
    for axis in domain:
        analyzer.bind(axis, tirx.const(0, axis.ty.dtype))
    return all(analyzer.can_prove_equal(index, 0) for index in indices)


def _parts(split: IterSplitExpr, axes: Sequence[Var]) -> Iterator[_Part]:
    """Yield the parts of axes that a part of an index consists of, outermost first; none for a cut of a fused
    axis.
    """
    yield from _cut(split.source, axes, int(split.lower_factor), int(split.extent))


def _cut(mark: IterMark, axes: Sequence[Var], stride: int, extent: int) -> Iterator[_Part]:
    """Yield the parts of `mark // stride % extent`."""
    source = mark.source
    if isinstance(source, Var):
        yield _Part(next(at for at, axis in enumerate(axes) if axis.same_as(source)), stride, extent)
    elif len(source.args) == 1:
        split = source.args[0]
        yield from _cut(split.source, axes, stride * int(split.lower_factor), extent)
    elif stride == 1 and extent == int(mark.extent):
        for split in source.args:
            yield from _parts(split, axes)


def _position(params: Sequence[Var], buffer: Var) -> int | None:
    return next((at for at, param in enumerate(params) if param.same_as(buffer)), None)


def _size(param: Var) -> int:
    return math.prod(int(extent) for extent in param.ty.shape)


def _elements(tensor: tvm.runtime.Tensor) -> NDArray[Any]:
    """Return the elements of a tensor as integers of the same size."""
    whole = np.dtype(f"u{tvm.DataType(tensor.dtype).itemsize}")
    return np.from_dlpack(tensor._create_view(tensor.shape, str(whole)))
