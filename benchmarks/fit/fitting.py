"""Agreement of estimates with measurements, and the shape factors that maximize it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from benchmarks.fit.programs import Group
from search.cost.analytic import estimate
from search.cost.cost_parameters import ShapeFactors
from search.cost.estimate import Estimate
from search.cost.features import extract
from search.cost.model import CostModel, Examples
from search.programs.nest import Floats

# A program with half the estimated time is 2 ** CHOICE times as likely to be chosen.
CHOICE = 8.0
# Upper bounds of factors that are shares of a whole.
SHARES = dict.fromkeys(("issue", "loads", "l1_share", "l2_share", "l3_share", "overlap"), 1.0)
STEPS = (1.6, 1.25, 1.1)
# Returns the seconds of a group's programs.
Guess: TypeAlias = Callable[[Group], Floats]
FACTORS = tuple(one.name for one in fields(ShapeFactors))
# Programs whose times differ by less than this fraction count as equally fast.
DISTINCT = 0.05
# Regularization: changing a factor costs RESTRAINT times its squared log ratio, so that a few programs don't
# change all factors.
RESTRAINT = 0.005


@dataclass(frozen=True)
class Agreement:
    """Agreement of estimated with measured seconds of one group.

    `rank` is Spearman's correlation. `regret` is the expected time over the fastest program's when a
    program is chosen with probability proportional to estimate ** -CHOICE. `bias` is the mean of
    log(measured / estimated) with fast programs weighted most, `error` the weighted root mean square of
    the rest.
    """

    rank: float
    regret: float
    bias: float
    error: float

    @property
    def loss(self) -> float:
        return float(np.log(self.regret) + 0.5 * (1.0 - self.rank) + 0.5 * self.error**2 + 0.1 * self.bias**2)


def estimated(group: Group, factors: ShapeFactors) -> Floats:
    """Return estimated seconds [programs]."""
    return np.concatenate([estimate(each, group.device, factors).seconds for each in group.populations])


def agreement(group: Group, factors: ShapeFactors) -> Agreement:
    from scipy.stats import rankdata

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


def train_on(groups: Sequence[Group], factors: ShapeFactors, count: int, seed: int) -> CostModel:
    """Train the learned model on `count` measured programs of these groups, which the seed draws."""
    features = np.concatenate([described(group, factors)[0] for group in groups])
    drawn = np.random.default_rng(seed).permutation(len(features))[:count]
    sizes = [len(group.seconds) for group in groups]
    return CostModel.train(
        Examples(
            features[drawn],
            np.concatenate([estimated(group, factors) for group in groups])[drawn],
            np.concatenate([group.seconds for group in groups])[drawn],
            np.repeat(np.arange(len(groups)), sizes)[drawn],
        )
    )


def predicted(group: Group, factors: ShapeFactors, model: CostModel) -> Floats:
    """Return the seconds that the learned model predicts [programs]."""
    return model.predict(*described(group, factors))


def described(group: Group, factors: ShapeFactors) -> tuple[NDArray[np.float32], Estimate]:
    """Return the features [programs, NUM_FEATURES] and the estimate of a group's programs."""
    found = [(each.sketch.dag, estimate(each, group.device, factors)) for each in group.populations]
    features = np.concatenate([extract(dag, one) for dag, one in found])
    return features, Estimate(np.concatenate([one.seconds for _, one in found]))


def pairs_right(groups: Sequence[Group], guess: Guess) -> tuple[float, int]:
    """Count the pairs of a task's programs that differ by at least DISTINCT. Return the number that the
    guessed seconds rank right, and the number of all. A pair with equal guesses counts half."""
    right, total = 0.0, 0
    for group in groups:
        guessed = guess(group)
        for one, other in itertools.combinations(range(len(guessed)), 2):
            first, second = group.seconds[one], group.seconds[other]
            if max(first, second) > (1 + DISTINCT) * min(first, second):
                total += 1
                order = np.sign(guessed[one] - guessed[other]) * np.sign(first - second)
                right += (1 + float(order)) / 2
    return right, total


def loss(groups: Sequence[Group], factors: ShapeFactors) -> float:
    """Return the mean loss over the groups."""
    return float(np.mean([agreement(group, factors).loss for group in groups]))


def fit(
    groups: Sequence[Group],
    start: ShapeFactors,
    say: Callable[[str], None] = lambda _: None,
    steps: Sequence[float] = STEPS,
    names: Collection[str] = FACTORS,
) -> ShapeFactors:
    """Minimize the loss by pattern search over the factors of these `names`.

    Each factor in turn is multiplied and divided by a step as long as that helps; then the step gets smaller.
    """

    def cost(factors: ShapeFactors) -> float:
        moved = [np.log(value / getattr(start, name)) for name, value in asdict(factors).items()]
        return loss(groups, factors) + RESTRAINT * float(np.sum(np.square(moved)))

    best, least = start, cost(start)
    for step in steps:
        improved = True
        while improved:
            improved = False
            before = least
            for name in names:
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
