"""Sketches: the structure of a program, everything but its numbers (paper section 4.1).

A sketch says of every node whether it is inlined, tiled over several levels, fused into the tile of its
producer, or left as a loop nest of its own. What stays open are integer variables: how each axis is split
(`Split`) and choices from short lists (`Choice`). A program is a sketch with values for its variables.

Sketches are derived by rules, from the last node to the first. A rule is a condition and an application;
a caller's own rules are tried before the built-in ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from functools import cached_property

from search.dag import BufferRole, Dag, Node
from search.predicates import elementwise_consumer, is_strictly_inlineable, is_tileable, needs_tiling

CPU_TILING = "SSRSRS"
CPU_REDUCTION = "SRS"
UNROLL_STEPS = (0, 16, 64, 512)


class Placement(StrEnum):
    """What becomes of a node: `NEST` is a loop nest of its own, `MOVABLE` may also be computed inside
    a loop of its consumer's nest, `FUSED` always is inside the tile of its producer."""

    INLINE = "inline"
    TILED = "tile"
    FUSED = "fuse"
    MOVABLE = "move"
    NEST = "nest"


@dataclass(frozen=True)
class Stage:
    """One node's place. A tiled stage carries its structure, such as `SSRSRS`, and its epilogue: the
    elementwise consumer (or, with `cache_write`, the copy out of the cache) and the number of spatial
    tile levels after which the epilogue is computed (0: not fused)."""

    node: str
    placement: Placement
    structure: str = ""
    epilogue: str | None = None
    epilogue_level: int = 0
    cache_write: bool = False

    def __str__(self) -> str:
        if self.placement is not Placement.TILED:
            return f"{self.placement} {self.node}"
        cache = " in a write cache" if self.cache_write else ""
        fused = f", {self.epilogue or 'copy'} at {self.epilogue_level}" if self.epilogue_level else ""
        return f"tile {self.node} {self.structure}{cache}{fused}"


@dataclass(frozen=True)
class Split:
    """Variables: the factors of one axis of a tiled node, outermost first; their product is `extent`."""

    node: str
    axis: int
    extent: int
    parts: int


@dataclass(frozen=True)
class Choice:
    """One variable: a position in `options`."""

    kind: str
    node: str
    options: tuple[int | str, ...]


@dataclass(frozen=True)
class Sketch:
    """A structure for every node of `dag`, in the dag's order, and the variables it leaves open."""

    dag: Dag
    stages: tuple[Stage, ...]

    @cached_property
    def key(self) -> str:
        """Names the sketch among the sketches of its dag; stable between processes."""
        return "; ".join(str(stage) for stage in self.stages)

    @cached_property
    def stage(self) -> dict[str, Stage]:
        return {stage.node: stage for stage in self.stages}

    @cached_property
    def tiled(self) -> tuple[Stage, ...]:
        return tuple(stage for stage in self.stages if stage.placement is Placement.TILED)

    @cached_property
    def variables(self) -> tuple[Split | Choice, ...]:
        return tuple(variable for stage in self.stages for variable in self._variables_of(stage))

    @cached_property
    def columns(self) -> dict[tuple[str, str | int], slice]:
        """Where a variable's values stand in a program's vector: (node, axis) for the factors of a split,
        (node, kind) for a choice."""
        found: dict[tuple[str, str | int], slice] = {}
        start = 0
        for variable in self.variables:
            if isinstance(variable, Split):
                key: tuple[str, str | int] = (variable.node, variable.axis)
                width = variable.parts
            else:
                key, width = (variable.node, variable.kind), 1
            found[key] = slice(start, start + width)
            start += width
        return found

    @cached_property
    def num_columns(self) -> int:
        return sum(v.parts if isinstance(v, Split) else 1 for v in self.variables)

    def host(self, stage: Stage) -> Stage | None:
        """The tiled stage inside whose loops a movable stage may be computed."""
        reader = self.reader(self.dag.node[stage.node])
        found = self.stage[reader.name] if reader else None
        return found if found and found.placement is Placement.TILED else None

    def reader(self, node: Node) -> Node | None:
        """The only node that reads `node`'s result once inlining is done, or None."""
        readers = {n for c in self.dag.consumers(node) for n in self._after_inlining(c)}
        return readers.pop() if len(readers) == 1 else None

    def _after_inlining(self, node: Node) -> Iterator[Node]:
        if self.stage[node.name].placement is not Placement.INLINE:
            yield node
            return
        for consumer in self.dag.consumers(node):
            yield from self._after_inlining(consumer)

    def _variables_of(self, stage: Stage) -> Iterator[Split | Choice]:
        node = self.dag.node[stage.node]
        if stage.placement is Placement.TILED:
            for position, axis in enumerate(node.axes):
                if axis.extent > 1:
                    yield Split(node.name, position, axis.extent, stage.structure.count(axis.kind))
            yield Choice("unroll", node.name, UNROLL_STEPS)
        elif stage.placement is Placement.MOVABLE:
            yield Choice("location", node.name, self._locations(stage))

    def _locations(self, stage: Stage) -> tuple[str, ...]:
        """Places for a movable node: inlined, a nest of its own, or inside its consumer's loops after
        the first one, two, ... tile levels, down to the outermost reduction level."""
        levels = range(1, self.deepest_location(stage) + 1)
        return ("inline", "root", *(str(level) for level in levels))

    def deepest_location(self, stage: Stage) -> int:
        """The number of its host's tile levels inside which a movable stage may be computed."""
        host = self.host(stage)
        return host.structure.index("R") + int(host.structure.count("R") > 1) if host else 0


class Verdict(Enum):
    SKIP = "skip"
    APPLY = "apply"
    APPLY_AND_STOP = "apply and stop"


@dataclass(frozen=True)
class State:
    """A partial derivation: the nodes after `position` have their stages, the others have none."""

    dag: Dag
    position: int
    stages: tuple[Stage, ...] = ()

    @property
    def current(self) -> Node:
        return self.dag.nodes[self.position]

    def inlined(self) -> frozenset[str]:
        return frozenset(s.node for s in self.stages if s.placement is Placement.INLINE)

    def put(self, *stages: Stage) -> State:
        """The state after the current node: new stages in front, replaced ones in their place."""
        new = {stage.node: stage for stage in stages}
        kept = tuple(new.pop(stage.node, stage) for stage in self.stages)
        return State(self.dag, self.position - 1, (*new.values(), *kept))


@dataclass(frozen=True)
class Rule:
    name: str
    condition: Callable[[State], Verdict]
    apply: Callable[[State], Sequence[State]]


def generate(dag: Dag, user_rules: Sequence[Rule] = ()) -> tuple[Sketch, ...]:
    """All sketches of `dag`, the same ones in the same order on every call."""
    rules = (*user_rules, *CPU_RULES)
    open_states = [State(dag, len(dag.nodes) - 1)]
    found: dict[str, Sketch] = {}
    while open_states:
        state = open_states.pop(0)
        if state.position < 0:
            sketch = Sketch(dag, _mark_movable(dag, state.stages))
            found.setdefault(sketch.key, sketch)
            continue
        open_states.extend(_derive(state, rules))
    return tuple(found.values())


def _derive(state: State, rules: Sequence[Rule]) -> Iterator[State]:
    for rule in rules:
        verdict = rule.condition(state)
        if verdict is Verdict.SKIP:
            continue
        yield from rule.apply(state)
        if verdict is Verdict.APPLY_AND_STOP:
            return


def _mark_movable(dag: Dag, stages: tuple[Stage, ...]) -> tuple[Stage, ...]:
    """Nests of their own whose only reader is tiled may move into its loops."""
    sketch = Sketch(dag, stages)

    def settle(stage: Stage) -> Stage:
        node = dag.node[stage.node]
        movable = stage.placement is Placement.NEST and not node.reduction and sketch.host(stage) is not None
        return replace(stage, placement=Placement.MOVABLE) if movable else stage

    return tuple(settle(stage) for stage in stages)


def _when(holds: bool, verdict: Verdict = Verdict.APPLY_AND_STOP) -> Verdict:
    return verdict if holds else Verdict.SKIP


def _is_output(state: State) -> bool:
    return state.dag.buffer[state.current.write.buffer].role is BufferRole.OUTPUT


def _epilogue(state: State) -> Node | None:
    """The elementwise consumer that the current node's tile can compute, if it has exactly one."""
    consumer = elementwise_consumer(state.dag, state.current, state.inlined())
    taken = {s.epilogue for s in state.stages}
    return consumer if consumer is not None and consumer.name not in taken else None


def _structure(node: Node) -> str:
    return CPU_TILING if needs_tiling(node) else CPU_REDUCTION


def _tile(state: State) -> list[State]:
    node = state.current
    return [state.put(Stage(node.name, Placement.TILED, _structure(node)))]


def _tile_and_fuse(state: State) -> list[State]:
    """conv; relu  ->  tiles of conv, each followed by its tile of relu, at either outer level."""
    consumer = _epilogue(state)
    assert consumer is not None
    fused = Stage(consumer.name, Placement.FUSED)
    return [state.put(tile, fused) for tile in _tiles(state.current, consumer.name)]


def _tile_in_cache(state: State) -> list[State]:
    """conv  ->  tiles of conv in a small buffer, each copied out when it is done."""
    return [state.put(replace(tile, cache_write=True)) for tile in _tiles(state.current, None)]


def _tiles(node: Node, epilogue: str | None) -> list[Stage]:
    structure = _structure(node)
    levels = range(1, structure.index("R") + 1)
    return [Stage(node.name, Placement.TILED, structure, epilogue, level) for level in levels]


CPU_RULES: tuple[Rule, ...] = (
    Rule(
        "AlwaysInline",
        lambda s: _when(not _is_output(s) and is_strictly_inlineable(s.current)),
        lambda s: [s.put(Stage(s.current.name, Placement.INLINE))],
    ),
    Rule(
        "AddCacheWrite",
        lambda s: _when(needs_tiling(s.current) and _epilogue(s) is None, Verdict.APPLY),
        _tile_in_cache,
    ),
    Rule(
        "MultiLevelTilingWithFusion",
        lambda s: _when(is_tileable(s.current) and _epilogue(s) is not None, Verdict.APPLY),
        _tile_and_fuse,
    ),
    Rule("MultiLevelTiling", lambda s: _when(is_tileable(s.current)), _tile),
    Rule("Skip", lambda s: Verdict.APPLY, lambda s: [s.put(Stage(s.current.name, Placement.NEST))]),
)
