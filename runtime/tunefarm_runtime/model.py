"""A compiled model, in one or several sizes."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunefarm_runtime.decoder import Decoder, share_cache
from tunefarm_runtime.errors import LoadError, NoSuchSize, RunError
from tunefarm_runtime.library import Library, to_numpy
from tunefarm_runtime.manifest import Cache, Manifest, Shape, Tensor
from tunefarm_runtime.threads import choose_threads
from tunefarm_runtime.weights import MappedWeights

Array = NDArray[Any]
# The lengths that an axis has in all sizes. Axes with the same lengths are one dimension of the model.
Extents = tuple[int, ...]
# Runs the model elsewhere: takes its inputs, returns its outputs.
Fallback = Callable[..., Sequence[Array]]
# The largest change of an output by padding, relative to its largest value.
PADDING_TOLERANCE = 1e-2


def load(
    folder: os.PathLike[str] | str,
    *,
    threads: int | None = None,
    pad: bool | Mapping[str, float] = False,
    fallback: Fallback | None = None,
    trusted: str | Sequence[str] | None = None,
) -> Model:
    """Load the folder that `tunefarm tune` has written.

    Args:
        folder: It holds one compiled model, or one in several sizes, each in a folder of its own. Several
            files may be the sizes of one decoder: their outputs for two tokens must agree.
        threads: Threads to compute with. By default as many as TVM_NUM_THREADS says, or else as many as the
            model was tuned for, if the process may use that many processors.
        pad: Pad inputs between two sizes at the end of their axes to the next larger size, and cut the
            outputs. A mapping gives the number to pad an input with, by its name; zero for the rest. Padding
            is right only if it changes nothing else, so loading compares each size with the next larger one.
        fallback: It is called with inputs that no size fits, instead of raising NoSuchSize.
        trusted: Public keys, such as `ed25519:...`. The model must be signed by one of them, which is checked
            before anything of it is loaded. Needs the extra `trusted`.

    Raises LoadError.
    """
    if not isinstance(folder, str | os.PathLike):
        raise LoadError(f"load takes the folder that tunefarm has written, not {type(folder).__name__}")
    root = Path(folder)
    if not root.is_dir():
        raise LoadError(f"{root} {_why_not_loadable(root)}")
    own = root / "manifest.json"
    inner = sorted(root.glob("*/manifest.json"))
    if own.exists() and inner:
        raise LoadError(f"{root} holds a compiled model and others in folders: move one of them away")
    sizes = [Manifest.read(file.parent, trusted) for file in ([own] if own.exists() else inner)]
    if not sizes:
        raise LoadError(f"{root} holds no compiled model: name a folder that tunefarm has written")
    several = len({size.model_sha for size in sizes}) > 1
    if several and not share_cache(sizes):
        raise LoadError(f"{root} holds several models: name the folder of one")
    padding: Mapping[str, float] | None = pad if isinstance(pad, Mapping) else {} if pad else None
    model = Model(sizes, threads, padding, fallback)
    if several:
        model.check_agreement()
    if padding is not None:
        model.check_padding()
    return model


def _why_not_loadable(path: Path) -> str:
    """Say why a path that isn't a folder can't be loaded, and what to load instead."""
    if not path.exists():
        return "doesn't exist: name the folder that tunefarm has written"
    if path.name in ("model.so", "manifest.json"):
        return f"is part of a compiled model: load its folder, {path.parent}"
    if path.suffix == ".tar":
        return "is an archive: unpack it, and load the folder"
    return f"is no compiled model: run `tunefarm tune {path}`, and load the folder that it writes"


@dataclass(frozen=True)
class Timing:
    """Seconds of each call of a model, in the order of the calls."""

    call_s: tuple[float, ...]

    @property
    def median_s(self) -> float:
        return float(np.median(self.call_s))

    def percentile_s(self, percent: float) -> float:
        return float(np.percentile(self.call_s, percent))

    def __str__(self) -> str:
        low, high = self.percentile_s(10) * 1e3, self.percentile_s(90) * 1e3
        return (
            f"median {self.median_s * 1e3:.4g} ms (p10 {low:.4g}, p90 {high:.4g}, {len(self.call_s)} calls)"
        )


class Model:
    """A compiled model. The libraries of several sizes are loaded when they are first called.

    Calls from several threads take turns: load the model once for each thread, and they run at once.
    """

    def __init__(
        self,
        sizes: Sequence[Manifest],
        threads: int | None = None,
        padding: Mapping[str, float] | None = None,
        fallback: Fallback | None = None,
    ) -> None:
        for size in sizes:
            size.check_machine()
        self.threads = choose_threads(threads, sizes[0].threads)
        # The smallest first.
        self._sizes = sorted(sizes, key=lambda size: sum(math.prod(one.shape) for one in size.inputs))
        self._by_shapes = {_shapes(size): index for index, size in enumerate(self._sizes)}
        self._libraries: dict[int, Library] = {}
        self._weights = MappedWeights()
        self._padding = padding
        self._fallback = fallback
        self._decoder = None if sizes[0].cache is None else Decoder(self._sizes, self._library)
        if len(self._sizes) == 1:
            self._library(0)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """Names, shapes and element types of the inputs; of the smallest size, if there are several."""
        return self._sizes[0].inputs

    @property
    def outputs(self) -> tuple[Tensor, ...]:
        """Names, shapes and element types of the outputs; of the smallest size, if there are several."""
        return self._sizes[0].outputs

    @property
    def cache(self) -> Cache | None:
        """The cache of a decoder's smallest size; None for other models."""
        return self._sizes[0].cache

    @property
    def sizes(self) -> list[dict[str, Shape]]:
        """The shapes of the inputs that the model was compiled for, by their names."""
        return [{one.name: one.shape for one in size.inputs} for size in self._sizes]

    def __call__(self, /, *args: Any, **kwargs: Any) -> list[Any]:
        """Run the model on inputs by position, or by name. Returns the outputs in the manifest's order.

        Inputs are NumPy arrays or objects with DLPack (PyTorch, CuPy, JAX). Their memory is shared if it is
        contiguous and begins at a multiple of 64 bytes; otherwise it is copied once. Outputs of a CPU model
        are NumPy arrays, and outputs of a GPU model have DLPack. Raises NoSuchSize if no size fits the shapes
        and there is no fallback. Raises RunError for other wrong inputs, and for a decoder that keeps its
        cache.
        """
        if self._decoder is not None:
            raise RunError("the model keeps its cache: call reset() and step(tokens)")
        inputs = self._ordered(args, kwargs) if kwargs else args
        if self._are_usual(inputs):
            return self._library(0)(inputs)
        if len(inputs) != len(self.inputs):
            raise RunError(f"the model takes {len(self.inputs)} inputs ({self._names}), not {len(inputs)}")
        for spec, value in zip(self.inputs, inputs, strict=True):
            try:
                dtype = value.dtype
            except AttributeError:
                raise RunError(
                    f"input {spec.name} is no array but {type(value).__name__}: pass one of {spec.dtype}"
                ) from None
            # NumPy's types compare fast; other libraries' have their own prefixes.
            if dtype != spec.numpy_dtype and str(dtype).rpartition(".")[2] != spec.dtype:
                raise RunError(
                    f"input {spec.name} is {dtype}, and the model takes {spec.dtype}: convert it first"
                )
        try:
            return self._run(inputs)
        except NoSuchSize:
            if self._fallback is None:
                raise
            return list(self._fallback(*inputs))

    def reset(self, **held: Any) -> None:
        """Empty a decoder's cache. `held` are inputs for all later steps, such as an encoder's states.

        Raises RunError.
        """
        self._kept().reset(held)

    def step(self, tokens: Any, **inputs: Any) -> list[Any]:
        """Append tokens to a decoder's cache, and return their outputs.

        `tokens` may be a number, a list, or an array like the model's input, with any number of tokens.
        `inputs` are the inputs that weren't passed to `reset`. Raises RunError, also if the cache is full.
        """
        return self._kept().step(tokens, inputs)

    def rewind(self, length: int) -> None:
        """Keep only the first `length` tokens in a decoder's cache. Raises RunError."""
        self._kept().rewind(length)

    @property
    def length(self) -> int:
        """The number of tokens in a decoder's cache. Raises RunError."""
        return self._kept().length

    def _kept(self) -> Decoder:
        if self._decoder is None:
            reason = self._sizes[0].no_cache or "it isn't a decoder with a cache of an open length"
            raise RunError(f"the model keeps no cache ({reason}): call it with all of its inputs")
        return self._decoder

    def to_numpy(self, outputs: Sequence[Any]) -> list[Array]:
        """Return the outputs of a call as arrays on the CPU."""
        return [to_numpy(one, spec) for one, spec in zip(outputs, self.outputs, strict=True)]

    def benchmark(self, seconds: float = 2.0, size: int = 0) -> Timing:
        """Time at least ten calls on random inputs for a number of seconds, after a warm-up. `size` is an
        index of `sizes`."""
        library = self._library(size)
        rng = np.random.default_rng(0)
        inputs = [one.draw(rng) for one in library.manifest.inputs]
        secs: list[float] = []
        end = time.perf_counter() + seconds
        for _ in range(3):
            library(inputs)
        library.synchronize()
        while len(secs) < 10 or time.perf_counter() < end:
            begin = time.perf_counter()
            library(inputs)
            library.synchronize()
            secs.append(time.perf_counter() - begin)
        return Timing(tuple(secs))

    def check_agreement(self) -> None:
        """Compare the sizes of a decoder for a few tokens. Raises LoadError if they differ."""
        self._kept().check_agreement()

    def check_padding(self) -> None:
        """Compare each size with the next larger one on padded inputs.

        Raises LoadError if padding changes more than roundings, if the lengths of outputs aren't known, or if
        an input can't hold its padding value.
        """
        dtypes = {spec.name: spec.numpy_dtype for spec in self.inputs}
        for name, number in (self._padding or {}).items():
            if name not in dtypes:
                raise LoadError(f"there is no input {name} to pad: the model takes {', '.join(dtypes)}")
            if not holds(dtypes[name], number):
                raise LoadError(f"input {name} is {dtypes[name]} and can't be padded with {number}")
        of_inputs = {extents for axes in self.input_axes for extents in axes}
        for spec, axes in zip(self.outputs, self.output_axes, strict=True):
            for axis, extents in enumerate(axes):
                if len(set(extents)) > 1 and extents not in of_inputs:
                    raise LoadError(
                        f"inputs can't be padded: axis {axis} of output {spec.name} has the lengths "
                        f"{', '.join(map(str, extents))}, and no axis of an input has these"
                    )
        rng = np.random.default_rng(0)
        for at, size in enumerate(self._sizes):
            inputs = [spec.draw(rng) for spec in size.inputs]
            lengths = self._lengths(inputs)
            index = self._fitting(lengths, at + 1)
            if index is None:
                continue
            exact = self.to_numpy(self._library(at)(inputs))
            padded = self._run_padded(inputs, lengths, index)
            for spec, own, other in zip(size.outputs, exact, padded, strict=True):
                allowed = PADDING_TOLERANCE * float(np.abs(own).max(initial=0))
                off = float(np.abs(own.astype(np.float64) - other).max(initial=0))
                if not off <= allowed:
                    raise LoadError(
                        f"inputs can't be padded: output {spec.name} changes by {off:.3g} when inputs "
                        f"{_text(_shapes(size))} are padded to {_text(_shapes(self._sizes[index]))}, because "
                        "the model mixes what is padded into the rest"
                    )

    def _are_usual(self, inputs: Sequence[Any]) -> bool:
        """Return whether inputs are NumPy arrays of the only size. Others are looked at more closely."""
        if len(self._sizes) != 1 or len(inputs) != len(self._usual):
            return False
        for value, (dtype, shape) in zip(inputs, self._usual, strict=True):
            if type(value) is not np.ndarray or value.shape != shape or value.dtype != dtype:
                return False
        return True

    @cached_property
    def _usual(self) -> list[tuple[np.dtype[Any], Shape]]:
        return [(one.numpy_dtype, one.shape) for one in self.inputs]

    @cached_property
    def _names(self) -> str:
        return ", ".join(one.name for one in self.inputs)

    def _ordered(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        names = [one.name for one in self.inputs]
        unknown = [name for name in kwargs if name not in names[len(args) :]]
        missing = [name for name in names[len(args) :] if name not in kwargs]
        if unknown or missing:
            what = f"has no input {unknown[0]}" if unknown else f"also needs the input {missing[0]}"
            raise RunError(f"the model {what}: its inputs are {self._names}")
        return [*args, *(kwargs[name] for name in names[len(args) :])]

    def _library(self, index: int) -> Library:
        if index not in self._libraries:
            self._libraries[index] = Library(self._sizes[index], self.threads, self._weights)
        return self._libraries[index]

    def _run(self, inputs: Sequence[Any]) -> list[Any]:
        index = self._by_shapes.get(tuple(tuple(one.shape) for one in inputs))
        if index is not None:
            return self._library(index)(inputs)
        if len(self._sizes) == 1:
            self._check_shapes(inputs)
        if self._padding is None:
            raise NoSuchSize(f"{self._compiled_for(inputs)}: load it with pad=True, or tune this size too")
        arrays = [np.asarray(one) for one in inputs]
        lengths = self._lengths(arrays)
        fitting = self._fitting(lengths)
        if fitting is None:
            raise NoSuchSize(f"{self._compiled_for(inputs)}: none is large enough, tune this size too")
        return list(self._run_padded(arrays, lengths, fitting))

    def _check_shapes(self, inputs: Sequence[Any]) -> None:
        for spec, value in zip(self.inputs, inputs, strict=True):
            if tuple(value.shape) != spec.shape:
                raise NoSuchSize(
                    f"input {spec.name} has the shape {_text([tuple(value.shape)])}, and the model was "
                    f"compiled for {_text([spec.shape])}: tune this size too"
                )

    @cached_property
    def input_axes(self) -> list[list[Extents]]:
        """The lengths of each axis of each input, in all sizes."""
        return _axes([size.inputs for size in self._sizes])

    @cached_property
    def output_axes(self) -> list[list[Extents]]:
        """The lengths of each axis of each output, in all sizes."""
        return _axes([size.outputs for size in self._sizes])

    def _lengths(self, inputs: Sequence[Array]) -> dict[Extents, int]:
        """Return the length of each dimension that differs between sizes. Raises RunError."""
        lengths: dict[Extents, int] = {}
        for array, axes in zip(inputs, self.input_axes, strict=True):
            if array.ndim != len(axes):
                raise NoSuchSize(self._compiled_for(inputs))
            for length, extents in zip(array.shape, axes, strict=True):
                if len(set(extents)) > 1:
                    if lengths.setdefault(extents, length) != length:
                        raise RunError(
                            f"the inputs {_text([one.shape for one in inputs])} disagree: {length} and "
                            f"{lengths[extents]} are lengths of the same dimension"
                        )
                elif length != extents[0]:
                    raise NoSuchSize(f"{self._compiled_for(inputs)}: no dimension of one size is padded")
        return lengths

    def _fitting(self, lengths: dict[Extents, int], start: int = 0) -> int | None:
        """Return the first size from `start` that is large enough, or None."""
        return next(
            (
                index
                for index in range(start, len(self._sizes))
                if all(extents[index] >= length for extents, length in lengths.items())
            ),
            None,
        )

    def _run_padded(self, inputs: Sequence[Array], lengths: dict[Extents, int], index: int) -> list[Array]:
        size, numbers = self._sizes[index], self._padding or {}
        padded = []
        for array, spec in zip(inputs, size.inputs, strict=True):
            whole = np.full(spec.shape, numbers.get(spec.name, 0), array.dtype)
            whole[tuple(map(slice, array.shape))] = array
            padded.append(whole)
        outputs = self.to_numpy(self._library(index)(padded))
        return [
            output[tuple(slice(lengths.get(extents)) for extents in axes)]
            for output, axes in zip(outputs, self.output_axes, strict=True)
        ]

    def _compiled_for(self, inputs: Sequence[Any]) -> str:
        sizes = "; ".join(_text(_shapes(size)) for size in self._sizes)
        return (
            f"the model was compiled for inputs of {sizes}, not {_text([tuple(one.shape) for one in inputs])}"
        )


def holds(dtype: np.dtype[Any], number: float) -> bool:
    """Return whether an element type can hold a number, if need be rounded."""
    if dtype.kind == "b":
        return number in (0, 1)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return math.isfinite(number) and number == int(number) and limits.min <= number <= limits.max
    return True


def _axes(sizes: Sequence[Sequence[Tensor]]) -> list[list[Extents]]:
    """Return the lengths of each axis of each tensor in all sizes."""
    return [list(zip(*(spec.shape for spec in tensors), strict=True)) for tensors in zip(*sizes, strict=True)]


def _shapes(size: Manifest) -> tuple[Shape, ...]:
    return tuple(one.shape for one in size.inputs)


def _text(shapes: Sequence[Shape]) -> str:
    return " ".join("(" + ", ".join(map(str, shape)) + ")" for shape in shapes)
