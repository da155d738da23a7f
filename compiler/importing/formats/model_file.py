"""A checked model file: the result of each format's reader."""

from __future__ import annotations

import mmap
from collections.abc import Mapping, Sequence
from typing import Protocol

from compiler.importing.model import RelaxModel
from compiler.importing.spec import ModelError, Shape, TensorSpec

# The content of a file, in memory or mapped into it.
Content = bytes | mmap.mmap


class ModelFile(Protocol):
    """A model's file whose inputs have static shapes."""

    @property
    def inputs(self) -> tuple[TensorSpec, ...]: ...

    @property
    def output_names(self) -> tuple[str, ...]: ...

    def to_relax(self) -> RelaxModel:
        """Import the model. Raises ModelError."""


class Reader(Protocol):
    """A reader of one format. `shapes` are the user's shapes, by input.

    Raises ModelError. TVM's importers are native code, so read untrusted files in a child process (see
    compiler.children.child).
    """

    def __call__(self, content: Content, shapes: Mapping[str, Shape]) -> ModelFile: ...


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return the names, with numbers after those that occur several times."""
    return tuple(
        name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names)
    )


def check_shapes(inputs: tuple[TensorSpec, ...], shapes: Mapping[str, Shape]) -> None:
    """Raise ModelError if the user gave another shape than the static one in the file."""
    declared = {spec.name: spec.shape for spec in inputs}
    for name, shape in shapes.items():
        if name not in declared:
            raise ModelError(
                f"the model has no input '{name}'; its inputs are: {', '.join(declared) or 'none'}"
            )
        if tuple(shape) != declared[name]:
            raise ModelError(
                f"input '{name}' has the shape {declared[name]} in the file, not {tuple(shape)}: export the "
                "model with the shape that it should have"
            )
