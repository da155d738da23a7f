"""The objectives that jobs may name: those of the paper, and what is installed beside tunefarm.

A package offers its own as an entry point of the group `tunefarm.objectives`: a function of
`search.objectives.Network`s that returns what is to be minimized. A request only names one, so no code comes
over the network.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import cast

from scheduler.errors import PermanentError
from search.objectives import OBJECTIVES, Objective

GROUP = "tunefarm.objectives"


@cache
def load_objective(name: str) -> Objective:
    """Return the objective of this name. Raises PermanentError when there is none that can be used."""
    if name in OBJECTIVES:
        return OBJECTIVES[name]
    offered = entry_points(group=GROUP)
    if name not in offered.names:
        known = ", ".join(sorted({*OBJECTIVES, *offered.names}))
        raise PermanentError(f"the scheduler has no objective {name!r}: use one of {known}, or install it")
    try:
        objective = offered[name].load()
    except Exception as error:
        raise PermanentError(
            f"the objective {name!r} can't be loaded ({type(error).__name__}: {error})"
        ) from error
    if not callable(objective):
        raise PermanentError(f"the objective {name!r} is not a function")
    return cast("Objective", objective)
