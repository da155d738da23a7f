"""Generate the search space of a subgraph on a device: all sketches that the rules derive."""

from __future__ import annotations

from collections.abc import Sequence

from core.device import Device
from search.dag import Dag
from search.rules.cpu import CPU_RULES
from search.rules.derive import Rule, derive
from search.rules.gpu import GPU_RULES
from search.sketches.sketch import Sketch


def generate(dag: Dag, device: Device, user_rules: Sequence[Rule] = ()) -> tuple[Sketch, ...]:
    """Return all sketches of `dag` on `device`, in the same order on every call.

    `user_rules` are tried before the built-in ones.
    """
    return derive(dag, device, (*user_rules, *(GPU_RULES if device.kind == "gpu" else CPU_RULES)))
