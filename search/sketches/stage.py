"""One node's place in a sketch."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Placement(StrEnum):
    """What becomes of a node: `NEST` is a loop nest of its own or one inside the nest that reads it, `FUSED`
    is computed inside the tile of its producer, `UNROLLED` is a nest around small constant matrices.

    On GPUs: `THREADS` is a kernel whose iterations are spread over threads, `ROWS` one whose blocks take some
    rows of a node each, `ACROSS` is a reduction inside the rows of another node by all threads of a block,
    `LOCAL` is computed by every thread of its reader for itself, `TENSOR` is tiled for tensor cores.
    """

    INLINE = "inline"
    TILED = "tile"
    FUSED = "fuse"
    NEST = "nest"
    UNROLLED = "unroll"
    THREADS = "threads"
    ROWS = "rows"
    ACROSS = "across"
    LOCAL = "local"
    TENSOR = "tensor cores"


class Rfactor(StrEnum):
    """Which half of the last reduction loop becomes an axis of partial results, reduced in a second nest:
    the inner one, so that they fill vectors, or the outer one, so that cores work on them side by side.
    `UNEVEN` is the inner half of a loop that it doesn't divide: the last step is shorter."""

    NONE = ""
    INNER = "inner"
    UNEVEN = "uneven"
    OUTER = "outer"

    @property
    def fills_vectors(self) -> bool:
        return self in (Rfactor.INNER, Rfactor.UNEVEN)

    @property
    def stands_apart(self) -> bool:
        """Whether the partial results have loops of their own, ahead of those that add them up. (TVM forgets
        the condition of a shorter step when it moves a nest.)"""
        return self in (Rfactor.UNEVEN, Rfactor.OUTER)


@dataclass(frozen=True)
class Stage:
    """A tiled stage carries its structure, such as `SSRSRS`, and its epilogue: the elementwise consumer (or,
    with `cache_write`, the copy out of the cache) and the number of spatial tile levels after which the
    epilogue is computed (0: not fused); its innermost tile may be counted in instructions, each an
    `intrinsic` of search.sketches.intrinsics. A nest that reduces may carry an `rfactor`.

    On GPUs the reads `shared` go through shared memory, fetched at the innermost loop of the outermost
    reduction level; `host` is the node in whose loops an `ACROSS` or `LOCAL` one is computed; `rows` are the
    axes of a `ROWS` node that number its rows."""

    node: str
    placement: Placement
    structure: str = ""
    epilogue: str | None = None
    epilogue_level: int = 0
    cache_write: bool = False
    rfactor: Rfactor = Rfactor.NONE
    intrinsic: str = ""
    shared: tuple[str, ...] = ()
    host: str | None = None
    rows: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.host is not None:
            return f"{self.placement} {self.node} in {self.host}"
        if self.placement in (Placement.THREADS, Placement.TENSOR) and self.epilogue:
            return f"{self.placement} {self.node}, {self.epilogue}"
        if self.placement is not Placement.TILED:
            return f"{self.placement} {self.node}" + (f" rfactor {self.rfactor}" if self.rfactor else "")
        cache = " in a write cache" if self.cache_write else ""
        fused = f", {self.epilogue or 'copy'} at {self.epilogue_level}" if self.epilogue_level else ""
        shared = f", shared {' '.join(self.shared)}" if self.shared else ""
        intrinsic = f" of {self.intrinsic}" if self.intrinsic else ""
        return f"tile {self.node} {self.structure}{intrinsic}{cache}{fused}{shared}"
