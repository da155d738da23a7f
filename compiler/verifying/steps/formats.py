"""What can be asked of models of every format whose reference is PyTorch, XLA or LiteRT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from compiler.importing.formats.exported_program import ExportedProgram
from compiler.importing.formats.stablehlo_model import StablehloModel
from compiler.importing.formats.tflite_model import TfliteModel
from compiler.verifying.steps import exported_program, stablehlo, tflite
from compiler.verifying.steps.step import Apart

Array = NDArray[Any]
Defined = ExportedProgram | StablehloModel | TfliteModel


def take_apart(file: Defined) -> Apart:
    """Return the steps of a model. Raises NoReference where nothing here can run it."""
    match file:
        case ExportedProgram():
            return exported_program.take_apart(file)
        case StablehloModel():
            return stablehlo.take_apart(file)
        case TfliteModel():
            return tflite.take_apart(file)


def index_extents_of(file: Defined) -> Mapping[str, int]:
    """Return for the inputs that are indices how many parts there are to choose from, by their names.

    StableHLO clamps indices: any integer is right there.
    """
    match file:
        case ExportedProgram():
            return exported_program.index_extents(file)
        case StablehloModel():
            return {}
        case TfliteModel():
            return tflite.index_extents(file)


def compute_edge(file: Defined, inputs: Mapping[str, Array]) -> list[Array] | None:
    """Return the outputs for inputs that the reference may refuse, such as a divisor of zero; None where it
    does."""
    try:
        return list(file.compute(inputs))
    except Exception:  # PyTorch raises errors of many types
        return None
