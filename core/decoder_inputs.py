"""Convert inputs of a decoder's library, which keeps its cache, to inputs of the decoder's file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


class _Derived(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def shape(self) -> Sequence[int]: ...
    @property
    def is_mask(self) -> bool: ...


class _Cache(Protocol):
    @property
    def position(self) -> str: ...
    @property
    def count(self) -> int: ...
    @property
    def buffers(self) -> Mapping[str, int]: ...
    @property
    def derived(self) -> Sequence[_Derived]: ...
    @property
    def moved(self) -> Mapping[str, int]: ...


def inputs_of_file(cache: _Cache, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return the inputs of a decoder's file for inputs of its library.

    The file's cache has one row for each earlier token. Masks and positions are inputs of the file, too.
    """
    before = int(inputs[cache.position][0])
    given = {name: array for name, array in inputs.items() if name != cache.position}
    for name, axis in cache.buffers.items():
        rows = np.take(inputs[name], range(before), axis)
        given[name] = np.ascontiguousarray(np.moveaxis(rows, axis, cache.moved.get(name, axis)))
    for one in cache.derived:
        positions = np.arange(before, before + cache.count)
        value = np.ones(before + cache.count) if one.is_mask else positions
        shape = (one.shape[0], value.size) if len(one.shape) == 2 else (value.size,)
        given[one.name] = np.broadcast_to(value, shape).astype(one.dtype)
    return given
