"""The base class of stages. A stage is the way in which one node of a subgraph is computed.

Each kind of stage is a class in `search.stages`, which also registers its validity
(`search.programs.validity`) and its estimate (`search.cost.estimate`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from search.sketches.sketch import Sketch
    from search.sketches.variables import Variable


class StageKind(StrEnum):
    """The kinds of stages, named as in a sketch's key."""

    INLINE = "inline"
    TILED = "tile"
    FUSED = "fuse"
    NEST = "nest"
    UNROLLED = "unroll"
    THREADS = "threads"
    ROWS = "rows"
    ACROSS = "across"
    KEPT = "keep"
    LOCAL = "local"
    TENSOR = "tensor cores"
    WARPGROUPS = "warpgroups"
    BLOCKS = "blocks"
    ATTENTION = "attention"
    TENSOR_ATTENTION = "attention on tensor cores"
    ONLINE_ATTENTION = "attention with an online softmax"
    ATTENDED = "attended"


class Rfactor(StrEnum):
    """The half of the last reduction loop that becomes an axis of partial results, which a second nest
    reduces. `INNER` partial results fill vectors. Several cores compute `OUTER` ones in parallel. `UNEVEN` is
    an inner half that doesn't divide the loop, so the last step is shorter.
    """

    NONE = ""
    INNER = "inner"
    UNEVEN = "uneven"
    OUTER = "outer"

    @property
    def fills_vectors(self) -> bool:
        return self in (Rfactor.INNER, Rfactor.UNEVEN)

    @property
    def has_own_nest(self) -> bool:
        """Whether the partial results have a separate nest before the nest that sums them. (TVM drops the
        condition of a shorter last step when it moves a nest.)
        """
        return self in (Rfactor.UNEVEN, Rfactor.OUTER)


@dataclass(frozen=True)
class Stage:
    """How `node` is computed. Fields that don't apply to a kind keep their defaults.

    A tiled stage has a `structure` such as `SSRSRS`: spatial and reduction levels, outermost first. It may
    have an `epilogue`: the elementwise consumer or, with `cache_write`, the copy out of the cache. The
    epilogue is computed inside the first `epilogue_level` spatial levels (0: not fused). Its innermost tile
    may be counted in instructions of an `intrinsic` (`search.sketches.intrinsics`). Operands in `shared` are
    fetched into shared memory at the innermost loop of the outermost reduction level.

    A nest that reduces may have an `rfactor`. `compute_at` is the node in whose loops this one is computed.
    `rows` are the row axes of a kernel whose blocks compute a few rows each. With `in_registers`, the kernel
    reads each row once (search.sketches.row_registers). On CPUs, the last of these axes is cut into `blocks`
    in all nests of a chain, and the axes of `channels` into `channel_blocks`
    (search.sketches.row_blocks).
    """

    kind: ClassVar[StageKind]

    node: str
    structure: str = ""
    epilogue: str | None = None
    epilogue_level: int = 0
    cache_write: bool = False
    rfactor: Rfactor = Rfactor.NONE
    intrinsic: str = ""
    shared: tuple[str, ...] = ()
    compute_at: str | None = None
    rows: tuple[int, ...] = ()
    in_registers: bool = False
    blocks: int = 0
    channels: tuple[int, ...] = ()
    channel_blocks: int = 1

    def variables(self, sketch: Sketch) -> Iterator[Variable]:
        """Yield the stage's variables; none by default."""
        return iter(())

    def __str__(self) -> str:
        return f"{self.kind} {self.node}" + (f", {self.epilogue}" if self.epilogue else "")
