"""Run compiled models, of one shape or in several sizes. Needs TVM's runtime and NumPy only.

model = load("bert-tuned", pad=True)
(hidden,) = model(ids, mask)  # of any number of tokens, up to the largest size
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

Array = NDArray[Any]
Shape = tuple[int, ...]
# The extents that an axis has in all sizes: axes that have the same ones are one dimension of the model.
Extents = tuple[int, ...]
# Runs the model somewhere else: takes its inputs, returns its outputs.
Fallback = Callable[..., Sequence[Array]]
# What padding may change a value by, relative to the largest one.
PADDING_TOLERANCE = 1e-2


class DeployedModelError(ValueError):
    """A model can't be loaded, or can't run on these inputs. The message is one sentence for the user."""


class NoSuchSize(DeployedModelError):
    """The model was compiled for none of the sizes that the inputs need."""


def load(
    folder: Path | str, *, pad: bool | Mapping[str, float] = False, fallback: Fallback | None = None
) -> DeployedModel:
    """Load the folder that `tunefarm tune` has written.

    With `pad`, inputs between two sizes of the model are padded at the end of their axes to the next larger
    one, and outputs are cut to the size: with the number that `pad` has for an input's name, else with
    zeros. That is right only where what is padded changes nothing else: see docs/models.md. `fallback` is
    called with the inputs that no size fits, in place of NoSuchSize. Raises DeployedModelError.
    """
    root = Path(folder)
    own = root / "manifest.json"
    inner = sorted(root.glob("*/manifest.json"))
    if own.exists() and inner:
        raise DeployedModelError(f"{root} holds one compiled model and others in folders: remove one of both")
    sizes = tuple(_Size.read(file.parent) for file in ([own] if own.exists() else inner))
    if not sizes:
        raise DeployedModelError(f"{root} holds no compiled model: name a folder that tunefarm has written")
    if len({size.model_sha for size in sizes}) > 1:
        raise DeployedModelError(f"{root} holds several models: name the folder of one")
    padding: Mapping[str, float] | None = pad if isinstance(pad, Mapping) else {} if pad else None
    model = DeployedModel(sizes, padding, fallback)
    if padding is not None:
        model.check_padding()
    return model


@dataclass(frozen=True)
class _Tensor:
    name: str
    shape: Shape
    dtype: str

    def draw(self, rng: np.random.Generator) -> Array:
        """Return values that every model takes: integers may be ids or a mask."""
        if np.issubdtype(np.dtype(self.dtype), np.floating):
            return rng.standard_normal(self.shape).astype(self.dtype)
        values = rng.integers(0, 2, self.shape)
        values[..., :1] = 1  # no mask hides everything
        return values.astype(self.dtype)


@dataclass(frozen=True)
class _Size:
    """One compiled library of a model."""

    folder: Path
    model_sha: str
    target: str
    inputs: tuple[_Tensor, ...]
    outputs: tuple[_Tensor, ...]

    @classmethod
    def read(cls, folder: Path) -> _Size:
        """Raises DeployedModelError."""
        try:
            manifest = json.loads((folder / "manifest.json").read_text())
            # TVM's own guess is half the cores.
            os.environ.setdefault("TVM_NUM_THREADS", str(manifest["threads"]))
            inputs, outputs = (
                tuple(_Tensor(spec["name"], tuple(spec["shape"]), spec["dtype"]) for spec in manifest[kind])
                for kind in ("inputs", "outputs")
            )
            kind = str(json.loads(manifest["target"])["kind"])
            return cls(folder, str(manifest["model_sha"]), kind, inputs, outputs)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise DeployedModelError(f"{folder}/manifest.json can't be read: {error}") from error

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return tuple(spec.shape for spec in self.inputs)

    @cached_property
    def _device(self) -> Any:
        return tvm.cuda() if self.target == "cuda" else tvm.cpu()

    @cached_property
    def _main(self) -> Any:
        library = tvm.runtime.load_module(str(self.folder / "model.so"))
        return relax.VirtualMachine(library, self._device)["main"]

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        result = self._main(*(tvm.runtime.tensor(array, self._device) for array in inputs))
        # A single output comes without a list.
        return [one.numpy() for one in ([result] if len(self.outputs) == 1 else result)]


class DeployedModel:
    """A compiled model in one or several sizes; calls take and return NumPy arrays. The libraries are loaded
    when they are first needed. `padding` is what inputs are padded with, by name, None if they aren't."""

    def __init__(
        self,
        sizes: Sequence[_Size],
        padding: Mapping[str, float] | None = None,
        fallback: Fallback | None = None,
    ) -> None:
        # The smallest first.
        self._sizes = sorted(sizes, key=lambda size: sum(map(math.prod, size.shapes)))
        self._by_shapes = {size.shapes: size for size in self._sizes}
        self._padding = padding
        self._fallback = fallback

    @property
    def sizes(self) -> list[dict[str, Shape]]:
        """The shapes of the inputs, by name, that it was compiled for."""
        return [{spec.name: spec.shape for spec in size.inputs} for size in self._sizes]

    def __call__(self, *inputs: Array) -> list[Array]:
        """Run the model. Raises NoSuchSize where it was compiled for no size that the inputs fit and there is
        no fallback, and DeployedModelError for inputs that it doesn't take."""
        first = self._sizes[0]
        if len(inputs) != len(first.inputs):
            names = ", ".join(spec.name for spec in first.inputs)
            raise DeployedModelError(
                f"the model takes {len(first.inputs)} inputs ({names}), not {len(inputs)}"
            )
        for spec, array in zip(first.inputs, inputs, strict=True):
            if str(array.dtype) != spec.dtype:
                raise DeployedModelError(
                    f"input {spec.name} is {array.dtype}, and the model takes {spec.dtype}"
                )
        try:
            return self._run(inputs)
        except NoSuchSize:
            if self._fallback is None:
                raise
            return list(self._fallback(*inputs))

    def _run(self, inputs: Sequence[Array]) -> list[Array]:
        size = self._by_shapes.get(tuple(array.shape for array in inputs))
        if size is not None:
            return size.run(inputs)
        if self._padding is None:
            raise NoSuchSize(f"{self._compiled_for(inputs)}: load it with pad=True, or tune this size too")
        lengths = self._lengths(inputs)
        index = self._fitting(lengths)
        if index is None:
            raise NoSuchSize(f"{self._compiled_for(inputs)}: none is large enough, tune this size too")
        return self._run_padded(inputs, lengths, index)

    def check_padding(self) -> None:
        """Compare each size with the next larger one on padded inputs. Raises DeployedModelError where
        padding changes more than roundings, the lengths of outputs can't be told, or an input is to be padded
        with what it can't hold."""
        dtypes = {spec.name: spec.dtype for spec in self._sizes[0].inputs}
        for name, number in (self._padding or {}).items():
            if name not in dtypes:
                raise DeployedModelError(
                    f"there is no input {name} to pad: the model takes {', '.join(dtypes)}"
                )
            if not _holds(dtypes[name], number):
                raise DeployedModelError(f"input {name} is {dtypes[name]} and can't be padded with {number}")
        of_inputs = {extents for axes in self._input_axes for extents in axes}
        for spec, axes in zip(self._sizes[0].outputs, self._output_axes, strict=True):
            for axis, extents in enumerate(axes):
                if len(set(extents)) > 1 and extents not in of_inputs:
                    raise DeployedModelError(
                        f"inputs can't be padded: axis {axis} of output {spec.name} has the lengths "
                        f"{', '.join(map(str, extents))}, which are those of no input's axis"
                    )
        rng = np.random.default_rng(0)
        for at, size in enumerate(self._sizes):
            inputs = [spec.draw(rng) for spec in size.inputs]
            lengths = self._lengths(inputs)
            index = self._fitting(lengths, at + 1)
            if index is None:
                continue
            padded = self._run_padded(inputs, lengths, index)
            for spec, exact, other in zip(size.outputs, size.run(inputs), padded, strict=True):
                allowed = PADDING_TOLERANCE * float(np.abs(exact).max(initial=0))
                off = float(np.abs(exact.astype(np.float64) - other).max(initial=0))
                if not off <= allowed:
                    raise DeployedModelError(
                        f"inputs can't be padded: output {spec.name} changes by {off:.3g} when inputs "
                        f"{_text(size.shapes)} are padded to {_text(self._sizes[index].shapes)}, because the "
                        "model mixes what is padded into the rest"
                    )

    @cached_property
    def _input_axes(self) -> list[list[Extents]]:
        return _axes([size.inputs for size in self._sizes])

    @cached_property
    def _output_axes(self) -> list[list[Extents]]:
        return _axes([size.outputs for size in self._sizes])

    def _lengths(self, inputs: Sequence[Array]) -> dict[Extents, int]:
        """Return how long the dimensions are that the model has several sizes of. Raises
        DeployedModelError."""
        lengths: dict[Extents, int] = {}
        for array, axes in zip(inputs, self._input_axes, strict=True):
            if array.ndim != len(axes):
                raise NoSuchSize(self._compiled_for(inputs))
            for length, extents in zip(array.shape, axes, strict=True):
                if len(set(extents)) > 1:
                    if lengths.setdefault(extents, length) != length:
                        raise DeployedModelError(
                            f"the inputs {_text([one.shape for one in inputs])} disagree: {length} and "
                            f"{lengths[extents]} are lengths of the same dimension"
                        )
                elif length != extents[0]:
                    raise NoSuchSize(f"{self._compiled_for(inputs)}: no dimension of one size is padded")
        return lengths

    def _fitting(self, lengths: dict[Extents, int], start: int = 0) -> int | None:
        """Return the first size from `start` that is large enough, None if there is none."""
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
        return [
            output[tuple(slice(lengths.get(extents)) for extents in axes)]
            for output, axes in zip(size.run(padded), self._output_axes, strict=True)
        ]

    def _compiled_for(self, inputs: Sequence[Array]) -> str:
        sizes = "; ".join(_text(size.shapes) for size in self._sizes)
        return f"the model was compiled for inputs of {sizes}, not {_text([one.shape for one in inputs])}"


def _holds(dtype: str, number: float) -> bool:
    """Return whether a type has this number, or one as near as rounding brings it."""
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return number in (0, 1)
    if kind.kind in "iu":
        limits = np.iinfo(kind)
        return math.isfinite(number) and number == int(number) and limits.min <= number <= limits.max
    return True


def _axes(sizes: Sequence[Sequence[_Tensor]]) -> list[list[Extents]]:
    """Return the extents of each axis of each tensor in all sizes."""
    return [list(zip(*(spec.shape for spec in tensors), strict=True)) for tensors in zip(*sizes, strict=True)]


def _text(shapes: Sequence[Shape]) -> str:
    return " ".join("(" + ", ".join(map(str, shape)) + ")" for shape in shapes)
