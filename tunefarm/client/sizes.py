"""The sizes that a model with open dimensions is tuned for."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from core.decoder_names import MASKS, POSITIONS, TOKENS, cache_inputs
from core.exported_programs import MalformedProgram, ProgramInputs, program_inputs
from core.job import MAX_MODELS
from core.model_format import MalformedMessage, ModelFormat, UnknownFormat, input_dimensions, recognise

# The default sizes of a decoder: the new tokens of a step, and the tokens in its cache.
NEW_TOKENS, CACHED_TOKENS = (1, 32), (256, 1024)
Shape = tuple[int, ...]
Dimensions = tuple[int | str, ...]


class IncompleteShape(ValueError):
    """A dimension of an input has no size. The message is one sentence for the user."""


class SizesError(ValueError):
    """The sizes don't fit the models. The message is one sentence for the user."""


@dataclass(frozen=True)
class Size:
    """The shapes of a model's inputs in one of its sizes. `name`, such as `tokens=32`, names a file. It is
    empty if the model has no other sizes.
    """

    name: str
    shapes: dict[str, Shape]


def sizes_of(
    models: Sequence[Path], given: Mapping[str, Shape], batch: int | None = None
) -> list[list[Size]]:
    """Return the sizes of each model.

    `given` maps an input's name to its shape, or a dimension's name to its sizes. If an input and a dimension
    have the same name, it means the input. Sizes of several dimensions are combined. `batch` is the size of
    open leading dimensions. A decoder with a cache has default sizes, and a batch of one.

    Raises SizesError, OSError, and IncompleteShape if a dimension of an input stays open.
    """
    declared = [_declared(model) for model in models]
    if len(models) == 1 and declared[0] is None:
        return [[Size("", dict(given))]]
    known = [one.inputs if one is not None else {} for one in declared]
    names = {name for inputs in known for name in (*inputs, *_open(inputs))}
    unknown = sorted(given.keys() - names)
    if unknown:
        listed = ", ".join(f"{name} {_text(dims)}" for inputs in known for name, dims in inputs.items())
        raise SizesError(f"there is no input and no dimension '{unknown[0]}'; inputs are: {listed or 'none'}")
    found = []
    for model, file in zip(models, declared, strict=True):
        own, chosen, leading = file.left_open(given) if file is not None else {}, given, batch
        if file is not None and file.lengths is not None:
            chosen = _with_defaults(own, given, file.lengths)
            leading = batch or 1
        found.append(_sizes(own, chosen, leading))
        _check_complete(model, own, found[-1], leading)
    _check_number(sum(map(len, found)))
    return found


@dataclass(frozen=True)
class _Declared:
    """The dimensions of a file's inputs, and the default sizes of a decoder's dimensions; None for other
    models.

    The service computes the shapes of inputs in `derived`. In an exported program, a dimension that two
    inputs share `is_shared`: the whole shape of one input gives the dimension its size in the others, too.
    """

    inputs: dict[str, Dimensions]
    lengths: dict[str, Shape] | None
    derived: frozenset[str] = frozenset()
    is_shared: bool = False

    def left_open(self, given: Mapping[str, Shape]) -> dict[str, Dimensions]:
        """Return the inputs that need a shape, with the dimensions that whole shapes of others leave open."""
        if not self.is_shared:
            return {name: dims for name, dims in self.inputs.items() if name not in self.derived}
        sizes: dict[int | str, int] = {}
        for name, dims in self.inputs.items():
            sizes |= {
                dim: size
                for dim, size in zip(dims, given.get(name, ()), strict=False)
                if dim in _open({name: dims})
            }
        return {
            name: dims if name in given else tuple(sizes.get(dim, dim) for dim in dims)
            for name, dims in self.inputs.items()
            if name in given or name not in self.derived
        }


def _declared_program(program: ProgramInputs) -> _Declared:
    """Return the inputs of an exported program. A decoder writes buffers, and its tokens are dynamic."""
    inputs = program.dimensions
    tokens = [inputs[name][1] for name in TOKENS if len(inputs.get(name, ())) > 1]
    lengths = {}
    for dim in tokens[:1]:
        if program.writes_buffers and isinstance(dim, str) and dim:
            low, high = program.limits.get(dim, (1, max(NEW_TOKENS)))
            lengths[dim] = tuple(sorted({min(max(size, low), high) for size in NEW_TOKENS}))
    return _Declared(inputs, lengths or None, program.computed, is_shared=True)


def _decoder_lengths(inputs: Mapping[str, Dimensions]) -> dict[str, Shape] | None:
    """Return the open dimensions of a decoder's new tokens and of its cache, with their default sizes; None
    for other models.
    """
    open_ = [dim for name in cache_inputs(inputs) for dim in inputs[name][1:] if not _is_fixed(dim)]
    if not open_:
        return None
    tokens = [inputs[name][1] for name in TOKENS if len(inputs.get(name, ())) > 1]
    sizes = [(dim, NEW_TOKENS) for dim in tokens[:1]] + [(open_[0], CACHED_TOKENS)]
    return {dim: size for dim, size in sizes if isinstance(dim, str) and dim}


def _with_defaults(
    inputs: Mapping[str, Dimensions], given: Mapping[str, Shape], lengths: Mapping[str, Shape]
) -> dict[str, Shape]:
    """Return the given sizes, and default sizes for a decoder's other lengths.

    Sizes of masks and positions are left out, because they derive from these lengths.
    """
    fixed = {dim for name in given if name in inputs for dim in inputs[name]}
    defaults = {dim: sizes for dim, sizes in lengths.items() if dim not in fixed}
    kept = {name: sizes for name, sizes in given.items() if name in inputs or name in _open(inputs)}
    return defaults | kept


def _check_complete(
    model: Path, inputs: Mapping[str, Dimensions], sizes: Sequence[Size], batch: int | None
) -> None:
    # A batch is the size of all leading dimensions, even if the file names them.
    batches = {dims[0] for dims in inputs.values() if dims and batch is not None}
    for name, dims in inputs.items():
        left = [at for at, dim in enumerate(dims) if not _is_fixed(dim)]
        unknown = [at for at in left if batch is None or (at and (not dims[at] or dims[at] not in batches))]
        if not unknown or any(name in size.shapes for size in sizes):
            continue
        shape = ",".join(str(dim if _is_fixed(dim) else 1) for dim in dims)
        how = f"--shape {name}={shape}"
        how = f"--batch 1, or {how}" if left == [0] else how
        raise IncompleteShape(
            f"input '{name}' of {model.name} leaves dimensions open {_text(dims)}: give {how}"
        )


def _check_number(sizes: int) -> None:
    if sizes > MAX_MODELS:
        raise SizesError(
            f"the models have {sizes} sizes in all, and a job takes {MAX_MODELS}: give fewer sizes"
        )


def _declared(model: Path) -> _Declared | None:
    """Return the inputs of an ONNX file or an exported program; None for other files."""
    with model.open("rb") as file:
        try:
            format_ = recognise(file)
            if format_ is ModelFormat.EXPORTED_PROGRAM:
                return _declared_program(program_inputs(file))
            if format_ is not ModelFormat.ONNX:
                return None
            inputs = input_dimensions(file)
        except (UnknownFormat, MalformedMessage, MalformedProgram):
            return None  # the service reports the error
    lengths = _decoder_lengths(inputs)
    return _Declared(inputs, lengths, frozenset() if lengths is None else frozenset((*MASKS, *POSITIONS)))


def _sizes(inputs: Mapping[str, Dimensions], given: Mapping[str, Shape], batch: int | None) -> list[Size]:
    fixed = {name: shape for name, shape in given.items() if name in inputs}
    varied = {name: sizes for name, sizes in given.items() if name not in inputs and name in _open(inputs)}
    if not varied:
        return [Size("", fixed)]
    _check_number(math.prod(map(len, varied.values())))
    for name, sizes in varied.items():
        if len(set(sizes)) < len(sizes):
            raise SizesError(f"a size of {name} is given twice: keep one")
        for one in fixed:
            if name in inputs[one]:
                raise SizesError(
                    f"input '{one}' is given a shape and its dimension '{name}' sizes: leave one of them out"
                )
    found = []
    for extents in itertools.product(*varied.values()):
        chosen = dict(zip(varied, extents, strict=True))
        if batch is not None:
            leading = {dims[0] for dims in inputs.values() if dims}
            chosen = {dim: batch for dim in leading if isinstance(dim, str) and dim} | chosen
        shapes = fixed | {
            one: tuple(_extent(one, dim, chosen, None if at else batch) for at, dim in enumerate(dims))
            for one, dims in inputs.items()
            if one not in fixed and not all(isinstance(dim, int) and dim for dim in dims)
        }
        text = ",".join(f"{name}={chosen[name]}" for name in varied)
        found.append(Size(re.sub(r"[^\w=,.-]", "_", text), shapes))
    return found if len(found) > 1 else [Size("", found[0].shapes)]


def _extent(name: str, dim: int | str, chosen: Mapping[str, int], otherwise: int | None) -> int:
    extent = (dim if isinstance(dim, int) else chosen.get(dim)) or otherwise
    if extent is None:
        how = f"give its size too, {dim}=1" if dim else f"give its whole shape with --shape {name}=..."
        what = f"'{dim}'" if dim else "another dimension"
        raise SizesError(f"input '{name}' leaves {what} open: {how}")
    return extent


def _is_fixed(dim: int | str) -> bool:
    return isinstance(dim, int) and dim > 0


def _open(inputs: Mapping[str, Dimensions]) -> set[str]:
    """Return the names of the dimensions that inputs leave open."""
    return {dim for dims in inputs.values() for dim in dims if isinstance(dim, str) and dim}


def _text(dims: Dimensions) -> str:
    return f"({', '.join(str(dim or '?') for dim in dims)})"
