"""The objectives that jobs may name: the paper's objectives, and those of plug-ins.

A package adds an objective as an entry point of the group `tunefarm.objectives`: a function of
`search.objectives.Network`s that returns the value to minimize. A request only names an objective, so no code
comes over the network.
"""

from __future__ import annotations

from typing import cast

from scheduler.errors import PermanentError
from search.objectives import OBJECTIVES, Objective
from system import plugins


def load_objective(name: str) -> Objective:
    """Return the objective of this name. Raises PermanentError if it is missing or unusable."""
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    # Load only the named plug-in, because others may be broken.
    offered = {one.name: one for one in plugins.extensions(plugins.OBJECTIVES)}
    if name not in offered:
        known = ", ".join(sorted({*OBJECTIVES, *offered}))
        raise PermanentError(f"the scheduler has no objective {name!r}: use one of {known}, or install it")
    try:
        objective = offered[name].value
    except plugins.PluginError as error:
        raise PermanentError(f"the objective {name!r} can't be used: {error}") from error
    if not callable(objective):
        raise PermanentError(f"the objective {name!r} is not a function")
    return cast("Objective", objective)
