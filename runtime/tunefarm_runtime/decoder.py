"""Run decoders that keep their cache: each step appends the keys and values of new tokens in place."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunefarm_runtime.errors import LoadError, RunError
from tunefarm_runtime.library import Library, allocate
from tunefarm_runtime.manifest import Cache, Manifest, Tensor

Array = NDArray[Any]
# Sizes of several files must agree on this many tokens, up to a fraction of the largest output.
AGREED_TOKENS, AGREEMENT = 2, 1e-2
# A size is padded to run fewer new tokens if they are at least this fraction of its tokens.
MIN_SIZE_RATIO = 0.25
_Size = tuple[int, Manifest, Cache]


def share_cache(sizes: Sequence[Manifest]) -> bool:
    """Return whether the decoders of several files keep one kind of cache, as a decoder for the first tokens
    and one for each later token do. Its capacity, and the number of new tokens, may differ.
    """
    return len({_kind(size) for size in sizes}) == 1 and sizes[0].cache is not None


def _kind(size: Manifest) -> object:
    """Return what sizes have in common that keep one kind of cache."""
    cache = size.cache
    if cache is None:
        return None
    axes = {**cache.buffers, **cache.tokens}

    def extents(spec: Tensor) -> list[int | None]:
        return [None if axes.get(spec.name) == axis else extent for axis, extent in enumerate(spec.shape)]

    inputs = sorted((spec.name, spec.dtype, str(extents(spec))) for spec in size.inputs)
    return (
        cache.position,
        tuple(sorted(axes.items())),
        tuple(inputs),
        tuple(one.dtype for one in size.outputs),
    )


class Decoder:
    """Runs a decoder, with its cache in the buffers of the smallest size that holds it. Calls from several
    threads run one at a time.
    """

    def __init__(self, sizes: Sequence[Manifest], library: Callable[[int], Library]) -> None:
        """`library` returns the library of a size, given its index in `sizes`."""
        self._sizes: list[_Size] = [
            (index, size, size.cache) for index, size in enumerate(sizes) if size.cache is not None
        ]
        self._library = library
        self._lock = threading.Lock()
        _, self._first, self._cache = self._sizes[0]
        fed = {self._cache.position, *self._cache.buffers, *self._cache.tokens}
        self._axes = self._cache.buffers
        self._held_names = [one.name for one in self._first.inputs if one.name not in fed]
        self._held: dict[str, Array] = {}
        self._tensors: dict[str, Any] = {}
        self._arrays: dict[str, Array] = {}
        self._capacity = 0
        # Steps wrote the rows before this one, or they were never zero. The others are zero.
        self._written = 0
        self.length = 0

    @property
    def capacity(self) -> int:
        """The most tokens that the cache can hold."""
        return max(cache.capacity for _, _, cache in self._sizes)

    def reset(self, held: Mapping[str, Any]) -> None:
        """Empty the cache, and free all but the smallest buffers. `held` are inputs for all later steps.

        Raises RunError.
        """
        self._check_names(held)
        with self._lock:
            self._held |= {name: np.array(value, order="C") for name, value in held.items()}
            self.length = 0
            if self._capacity > min(cache.capacity for _, _, cache in self._sizes):
                self._tensors, self._arrays, self._capacity = {}, {}, 0

    def check_agreement(self) -> None:
        """Compare the outputs of all sizes for a few tokens. Raises LoadError if they differ by more than
        roundings: then the sizes have different weights.
        """
        rng = np.random.default_rng(0)
        ((name, axis),) = self._cache.tokens.items()
        spec = next(one for one in self._first.inputs if one.name == name)
        shape = tuple(AGREED_TOKENS if at == axis else extent for at, extent in enumerate(spec.shape))
        tokens = Tensor(name, shape, spec.dtype).draw(rng)
        others = {one.name: one.draw(rng) for one in self._first.inputs if one.name in self._held_names}
        found = [self._rows(size, tokens, axis, others) for size in self._sizes]
        for (_, manifest, _), rows in zip(self._sizes[1:], found[1:], strict=True):
            for wanted, row in zip(found[0], rows, strict=True):
                off = float(np.abs(wanted.astype(np.float64) - row).max(initial=0))
                if not off <= AGREEMENT * float(np.abs(wanted).max(initial=0)):
                    raise LoadError(
                        f"{self._first.folder} and {manifest.folder} compute different outputs (by "
                        f"{off:.3g}), so they aren't one decoder: name the folder of one"
                    )
        self.reset({})

    def _rows(self, size: _Size, tokens: Array, axis: int, others: Mapping[str, Any]) -> list[Array]:
        """Return the outputs of a size for tokens, in an empty cache. Raises LoadError."""
        _, manifest, cache = size
        self._tensors, self._arrays, self._capacity, self.length = {}, {}, 0, 0
        parts = []
        try:
            self._grow(size)
            for place in range(0, AGREED_TOKENS, cache.count):
                chunk = tokens.take(range(place, min(place + cache.count, AGREED_TOKENS)), axis)
                self.length = place
                parts.append(self._run(size, chunk, axis, others))
        except RunError as error:
            raise LoadError(f"{manifest.folder} can't be run beside {self._first.folder}: {error}") from error
        return [
            np.concatenate(part, cache.outputs[spec.name]) if spec.name in cache.outputs else part[-1]
            for spec, part in zip(manifest.outputs, zip(*parts, strict=True), strict=True)
        ]

    def rewind(self, length: int) -> None:
        """Keep only the first `length` tokens. Raises RunError."""
        with self._lock:
            if not 0 <= length <= self.length:
                raise RunError(f"the cache can't be rewound to {length} tokens: give 0 to {self.length}")
            self.length = length

    def step(self, tokens: Any, inputs: Mapping[str, Any]) -> list[Array]:
        """Append tokens to the cache, and return their outputs. After a RunError, none is appended."""
        self._check_names(inputs)
        others = {**self._held, **inputs}
        missing = [name for name in self._held_names if name not in others]
        if missing:
            raise RunError(
                f"the input {missing[0]} is missing: pass it to reset() for all steps, or to each step()"
            )
        given, axis = self._checked(np.asarray(tokens))
        with self._lock:
            parts, done, before = [], 0, self.length
            try:
                while done < given.shape[axis]:
                    size = self._choose(given.shape[axis] - done)
                    self._grow(size)
                    chunk = given.take(range(done, min(done + size[2].count, given.shape[axis])), axis)
                    parts.append(self._run(size, chunk, axis, others))
                    done += chunk.shape[axis]
                    self.length = before + done
            except BaseException:
                self.length = before
                raise
        return [
            np.concatenate(part, self._cache.outputs[spec.name])
            if len(part) > 1 and spec.name in self._cache.outputs
            else part[-1]
            for spec, part in zip(self._first.outputs, zip(*parts, strict=True), strict=True)
        ]

    def _check_names(self, inputs: Mapping[str, Any]) -> None:
        unknown = [name for name in inputs if name not in self._held_names]
        if unknown:
            raise RunError(
                f"the model has no input {unknown[0]}; its inputs besides the tokens are: "
                f"{', '.join(self._held_names) or 'none'}"
            )

    def _checked(self, given: Array) -> tuple[Array, int]:
        """Return new tokens in the shape and type of the model's input, and their axis. Raises RunError."""
        ((name, axis),) = self._cache.tokens.items()
        spec = next(one for one in self._first.inputs if one.name == name)
        rest = spec.shape[axis + 1 :]
        if given.ndim < len(spec.shape) and spec.shape[0] == 1 and given.size % math.prod(rest) == 0:
            given = given.reshape(1, -1, *rest)
        shape = list(given.shape)
        if len(shape) == len(spec.shape):
            shape[axis] = spec.shape[axis]
        if tuple(shape) != spec.shape or not given.size:
            wanted = ", ".join("tokens" if k == axis else str(one) for k, one in enumerate(spec.shape))
            raise RunError(f"{name} has the shape {given.shape}, and a step takes ({wanted}): reshape it")
        dtype = spec.numpy_dtype
        if given.dtype != dtype and not (given.dtype.kind in "iu" and dtype.kind in "iu"):
            raise RunError(f"{name} is {given.dtype}, and a step takes {dtype}: convert it first")
        return given.astype(dtype), axis

    def _choose(self, left: int) -> _Size:
        """Return the size to run next if `left` tokens are left. Raises RunError if no size fits."""
        fitting = [
            size
            for size in self._sizes
            if self.length + size[2].count <= size[2].capacity and size[2].capacity >= self._capacity
        ]
        if not fitting:
            raise RunError(
                f"the cache is full with {self.length} tokens; the largest size holds {self.capacity}. "
                "Call reset() or rewind(), or tune a larger size"
            )
        counts = sorted({size[2].count for size in fitting})
        useful = [count for count in counts if left >= MIN_SIZE_RATIO * count]
        enough = [count for count in useful if count >= left]
        best = min(enough) if enough else max(useful, default=counts[0])
        return min((size for size in fitting if size[2].count == best), key=lambda size: size[2].capacity)

    def _grow(self, size: _Size) -> None:
        """Move the cache into the buffers of a size if they are larger than the current ones."""
        index, manifest, cache = size
        if cache.capacity == self._capacity:
            return
        self._library(index)  # loads TVM's runtime, which allocates
        for spec in manifest.inputs:
            if spec.name not in cache.buffers:
                continue
            tensor, array = allocate(spec)
            if self.length:
                rows = self._rows_of(spec.name, 0, self.length)
                array[rows] = self._arrays[spec.name][rows]
            self._tensors[spec.name], self._arrays[spec.name] = tensor, array
        self._capacity = self._written = cache.capacity

    def _clear_after(self, end: int) -> None:
        """Set the rows from `end` on to zero. They hold no token, but a step reads them: a probability of
        zero times what another text left there may be NaN. The rows before them hold tokens, or the next step
        writes them.
        """
        for name, array in self._arrays.items():
            array[self._rows_of(name, end, self._written)] = 0
        self._written = end

    def _rows_of(self, name: str, start: int, end: int) -> tuple[slice, ...]:
        return (slice(None),) * self._axes[name] + (slice(start, end),)

    def _run(self, size: _Size, tokens: Array, axis: int, others: Mapping[str, Any]) -> list[Array]:
        """Run one size on new tokens, padded with zeros. Padding doesn't change earlier tokens' outputs."""
        index, manifest, cache = size
        new = tokens.shape[axis]
        if new < cache.count:
            tokens = np.pad(tokens, [(0, cache.count - new if k == axis else 0) for k in range(tokens.ndim)])
        values = []
        for spec in manifest.inputs:
            if spec.name in cache.buffers:
                values.append(self._tensors[spec.name])
            elif spec.name == cache.position:
                values.append(np.full(spec.shape, self.length, spec.numpy_dtype))
            elif spec.name in cache.tokens:
                values.append(tokens)
            else:
                value = np.asarray(others[spec.name])
                if value.shape != spec.shape or value.dtype != spec.numpy_dtype:
                    raise RunError(
                        f"input {spec.name} is {value.dtype} {value.shape}, and the model takes {spec.dtype} "
                        f"{spec.shape}: convert it first"
                    )
                values.append(value)
        self._clear_after(self.length + cache.count)
        outputs = self._library(index)(values)
        return [
            output.take(range(new), cache.outputs[spec.name])
            if new < cache.count and spec.name in cache.outputs
            else output
            for spec, output in zip(manifest.outputs, outputs, strict=True)
        ]
