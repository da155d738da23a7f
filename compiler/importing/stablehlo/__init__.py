"""Converters of StableHLO's operations, by name."""

from __future__ import annotations

from collections.abc import Mapping

from compiler.importing.stablehlo import (
    bits,
    control,
    elementwise,
    gathers,
    movement,
    products,
    reductions,
    sorting,
    windows,
)
from compiler.importing.stablehlo.importer import Converter

CONVERTERS: Mapping[str, Converter] = {
    **bits.CONVERTERS,
    **control.CONVERTERS,
    **elementwise.CONVERTERS,
    **gathers.CONVERTERS,
    **movement.CONVERTERS,
    **products.CONVERTERS,
    **reductions.CONVERTERS,
    **sorting.CONVERTERS,
    **windows.CONVERTERS,
}
