"""How far estimates are from measurements, and the shape factors that bring them closest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from scipy.stats import rankdata

from benchmarks.fit.programs import Group
from search.cost.analytic import estimate
from search.cost.machine import ShapeFactors
from search.programs.nest import Floats

# A program that is estimated to be twice as fast is two to this power times as likely to be chosen.
CHOICE = 8.0
# Parts of what there is can't be more than all of it.
SHARES = dict.fromkeys(("issue", "loads", "l1_share", "l2_share", "l3_share", "overlap", "crowding"), 1.0)
STEPS = (1.6, 1.25, 1.1)
# What it costs to move a factor away from where the fit began, times the square of its logarithm: what a few
# programs ask for should not bend the factors for all others.
RESTRAINT = 0.005


@dataclass(frozen=True)
class Agreement:
    """How estimates agree with what was measured of one group.

    `rank` is Spearman's correlation. `regret` says how many times as long as the group's fastest program the
    one takes that the estimate likes best (the softest of choices: by weight). `bias` is the logarithm of
    measured over estimated seconds, its mean over the programs, fast ones weighted most; `error` is the root
    of the weighted mean square of what remains.
    """

    rank: float
    regret: float
    bias: float
    error: float

    @property
    def loss(self) -> float:
        return float(np.log(self.regret) + 0.5 * (1.0 - self.rank) + 0.5 * self.error**2 + 0.1 * self.bias**2)


def estimated(group: Group, factors: ShapeFactors) -> Floats:
    """Seconds [programs]."""
    return np.concatenate([estimate(each, group.device, factors).seconds for each in group.populations])


def agreement(group: Group, factors: ShapeFactors) -> Agreement:
    guessed, measured = estimated(group, factors), group.seconds
    relative = measured / measured.min()
    logs = np.log(measured / guessed)
    weights = 1.0 / relative
    bias = float(np.average(logs, weights=weights))
    error = float(np.sqrt(np.average((logs - bias) ** 2, weights=weights)))
    chances = (guessed / guessed.min()) ** -CHOICE
    regret = float(np.average(relative, weights=chances))
    ranks = np.corrcoef(rankdata(guessed), rankdata(measured))[0, 1] if len(measured) > 2 else 1.0
    return Agreement(float(np.nan_to_num(ranks)), regret, bias, error)


def loss(groups: Sequence[Group], factors: ShapeFactors) -> float:
    """The mean over the groups."""
    return float(np.mean([agreement(group, factors).loss for group in groups]))


def fit(
    groups: Sequence[Group],
    start: ShapeFactors,
    say: Callable[[str], None] = lambda _: None,
    steps: Sequence[float] = STEPS,
) -> ShapeFactors:
    """The factors of least loss that a pattern search finds: it makes each factor in turn larger and smaller
    by a step, as long as that helps, then makes the step smaller."""

    def cost(factors: ShapeFactors) -> float:
        moved = [np.log(value / getattr(start, name)) for name, value in asdict(factors).items()]
        return loss(groups, factors) + RESTRAINT * float(np.sum(np.square(moved)))

    best, least = start, cost(start)
    for step in steps:
        improved = True
        while improved:
            improved = False
            before = least
            for name in asdict(best):
                for by in (step, 1.0 / step):
                    value = min(getattr(best, name) * by, SHARES.get(name, np.inf))
                    tried = replace(best, **{name: value})
                    found = cost(tried)
                    if found < least:
                        best, least = tried, found
                        break
            improved = least < before - 0.002
            say(f"steps of {step}: loss {least:.4f}")
    return best
