"""One node's place in a sketch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Placement(StrEnum):
    """What becomes of a node: `NEST` is a loop nest of its own or one inside the nest that reads it, `FUSED`
    is computed inside the tile of its producer, `UNROLLED` is a nest around small constant matrices."""

    INLINE = "inline"
    TILED = "tile"
    FUSED = "fuse"
    NEST = "nest"
    UNROLLED = "unroll"


class Rfactor(StrEnum):
    """Which half of the last reduction loop becomes an axis of partial results, reduced in a second nest:
    the inner one, so that they fill vectors, or the outer one, so that cores work on them side by side."""

    NONE = ""
    INNER = "inner"
    OUTER = "outer"


@dataclass(frozen=True)
class Stage:
    """A tiled stage carries its structure, such as `SSRSRS`, and its epilogue: the elementwise consumer (or,
    with `cache_write`, the copy out of the cache) and the number of spatial tile levels after which the
    epilogue is computed (0: not fused). A nest that reduces may carry an `rfactor`."""

    node: str
    placement: Placement
    structure: str = ""
    epilogue: str | None = None
    epilogue_level: int = 0
    cache_write: bool = False
    rfactor: Rfactor = Rfactor.NONE

    def __str__(self) -> str:
        if self.placement is not Placement.TILED:
            return f"{self.placement} {self.node}" + (f" rfactor {self.rfactor}" if self.rfactor else "")
        cache = " in a write cache" if self.cache_write else ""
        fused = f", {self.epilogue or 'copy'} at {self.epilogue_level}" if self.epilogue_level else ""
        return f"tile {self.node} {self.structure}{cache}{fused}"
