"""Inputs and outputs of a model, and the error for a model that can't be tuned."""

from __future__ import annotations

from dataclasses import dataclass

Shape = tuple[int, ...]


class ModelError(ValueError):
    """A model can't be tuned. The message is one sentence for the user with the cause and the next step."""


class NoReference(Exception):
    """Nothing here can run the model as its file defines it. The message says why."""


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a model; `dtype` is numpy's name.

    Along the `padded_axis` of an output, the data decides how many parts are valid, of as many as there can
    be: they come first, and all others hold -1 (0, if they are booleans or unsigned).
    """

    name: str
    shape: Shape
    dtype: str
    padded_axis: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(int(extent) for extent in self.shape))
        if any(extent < 0 for extent in self.shape):
            raise ValueError(f"tensor {self.name} has a negative extent: {self.shape}")


def first_line(error: BaseException) -> str:
    """Return the first line of a library's error message, cut to 300 characters."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]
