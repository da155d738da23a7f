"""Derive sketches by rules, from the last node to the first (paper section 4.1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from core.device import Device
from search.dag import Dag, Node
from search.sketches.predicates import elementwise_consumer
from search.sketches.sketch import Sketch
from search.sketches.stage import Stage, StageKind


class ConditionKind(Enum):
    """Whether a rule applies to a state, and whether later rules are still tried."""

    SKIP = "skip"
    APPLY = "apply"
    APPLY_AND_SKIP_REST = "apply and skip the rest"


@dataclass(frozen=True)
class State:
    """A partial derivation: the nodes after `position` have stages, the others have none yet."""

    dag: Dag
    device: Device
    position: int
    stages: tuple[Stage, ...] = ()

    @property
    def current(self) -> Node:
        return self.dag.nodes[self.position]

    @property
    def is_output(self) -> bool:
        return self.dag.is_output(self.current)

    @property
    def stage(self) -> dict[str, Stage]:
        """The stages by the names of their nodes."""
        return {stage.node: stage for stage in self.stages}

    def epilogue(self) -> Node | None:
        """Return the elementwise consumer that the current node's tile can compute; None without one, or if
        another tile computes it.
        """
        inlined = frozenset(stage.node for stage in self.stages if stage.kind is StageKind.INLINE)
        consumer = elementwise_consumer(self.dag, self.current, inlined)
        taken = {stage.epilogue for stage in self.stages}
        return consumer if consumer is not None and consumer.name not in taken else None

    def put(self, *stages: Stage) -> State:
        """Return the state after the current node. Stages of later nodes replace their current stages."""
        new = {stage.node: stage for stage in stages}
        kept = tuple(new.pop(stage.node, stage) for stage in self.stages)
        return State(self.dag, self.device, self.position - 1, (*new.values(), *kept))


@dataclass(frozen=True)
class Rule:
    """`apply` returns the next states if `condition` holds."""

    name: str
    condition: Callable[[State], ConditionKind]
    apply: Callable[[State], list[State]]


def when(holds: bool, kind: ConditionKind = ConditionKind.APPLY_AND_SKIP_REST) -> ConditionKind:
    return kind if holds else ConditionKind.SKIP


def derive(dag: Dag, device: Device, rules: Sequence[Rule]) -> tuple[Sketch, ...]:
    """Return all sketches of `dag`, in the same order on every call."""
    open_states = [State(dag, device, len(dag.nodes) - 1)]
    found: dict[str, Sketch] = {}
    while open_states:
        state = open_states.pop(0)
        if state.position < 0:
            sketch = Sketch(dag, state.stages, device.gpu)
            found.setdefault(sketch.key, sketch)
            continue
        for rule in rules:
            kind = rule.condition(state)
            if kind is not ConditionKind.SKIP:
                open_states.extend(rule.apply(state))
            if kind is ConditionKind.APPLY_AND_SKIP_REST:
                break
    return tuple(found.values())
