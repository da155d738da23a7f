"""Stages without loops of their own, on every device."""

from __future__ import annotations

from search.sketches.stage import Placement, Stage


class Inlined(Stage):
    """Computed wherever its value is read."""

    placement = Placement.INLINE


class Fused(Stage):
    """Computed inside the tiles of its producer, whose epilogue it is."""

    placement = Placement.FUSED
