"""Stages without loops of their own, on every device."""

from __future__ import annotations

from search.sketches.stage import Stage, StageKind


class Inlined(Stage):
    """Computed wherever its value is read."""

    placement = StageKind.INLINE


class Fused(Stage):
    """Computed inside the tiles of its producer, whose epilogue it is."""

    placement = StageKind.FUSED
