"""Stages without their own loops, on every device."""

from __future__ import annotations

from search.sketches.stage import Stage, StageKind


class Inlined(Stage):
    """A node that is inlined into its consumers."""

    kind = StageKind.INLINE


class Fused(Stage):
    """An epilogue, computed inside its producer's tiles."""

    kind = StageKind.FUSED
