"""The search policy: which programs of a task to measure next."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import merge
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from core.device import Device
from search.cost.analytic import estimate
from search.cost.estimate import Estimate
from search.cost.features import extract
from search.cost.model import CostModel, Examples
from search.dag import Dag
from search.evolution.evolve import EvolutionConfig, add_generation, evolve
from search.evolution.scored import Scored, join
from search.programs.annotate import sample
from search.programs.nest import Floats, Nest
from search.programs.program import Population, Program, gather
from search.sketches.factors import Ints
from search.sketches.sketch import Sketch

# The fraction of a batch that is random.
RANDOM_SHARE = 0.05
RANDOM_DRAWS = 64
MIN_POPULATION = 32
# How many programs are sampled for each one that `draw` selects by weight.
OVERSAMPLING = 8
# A program with half the estimated time has 2 ** SAMPLING_EXPONENT times the weight.
SAMPLING_EXPONENT = 3.0
# How many new programs of every sketch may be picked.
PICKING_DEPTH = 256

# The number of a sketch, and the row of a program.
Place = tuple[int, int]
# The features and the analytic seconds of a program.
Example = tuple[NDArray[np.float32], np.float64]


@dataclass(frozen=True)
class TuneContext:
    """One workload on one device class."""

    dag: Dag
    sketches: tuple[Sketch, ...]
    device: Device
    _examples: dict[Program, Example] = field(default_factory=dict, init=False, compare=False, repr=False)

    def describe(self, population: Population) -> tuple[NDArray[np.float32], Estimate]:
        """Return the features of programs, and the analytic estimate from which they are computed."""
        estimated = estimate(population, self.device)
        return extract(self.dag, estimated), estimated

    def predict(self, population: Population, model: CostModel) -> Floats:
        """Predict the seconds [programs]."""
        return self.score(population, model).seconds

    def score(self, population: Population, model: CostModel) -> Scored:
        """Predict the seconds of programs, and estimate the seconds of their stages."""
        features, estimated = self.describe(population)
        seconds = model.predict(features, estimated)
        return Scored(population, seconds, estimated.stages, features, estimated.seconds)

    def examples(self, programs: Sequence[Program]) -> list[Example]:
        """Return what a model learns from about each program. It is computed once, because every training
        needs it.
        """
        missing = [program for program in dict.fromkeys(programs) if program not in self._examples]
        for key in dict.fromkeys(program.sketch.key for program in missing):
            of_sketch = [program for program in missing if program.sketch.key == key]
            features, estimated = self.describe(gather(of_sketch))
            described = zip(features, estimated.seconds, strict=True)
            self._examples.update(zip(of_sketch, described, strict=True))
        return [self._examples[program] for program in programs]

    def remember(self, proposals: Sequence[Proposal]) -> None:
        """Keep the features of proposals: a model learns from them once they are measured."""
        for one in proposals:
            self._examples[one.program] = (one.features, np.float64(one.estimated_s))


@dataclass(frozen=True)
class Proposal:
    """A program, its predicted seconds, its analytic estimate and its features."""

    program: Program
    predicted_s: float
    estimated_s: float
    features: NDArray[np.float32] = field(compare=False, repr=False)


@dataclass
class KnownPrograms:
    """The best programs of the last evolutions of a task's sketches, by the sketch's key, as predicted by
    `model`. Empty before the first evolution. `drawn` are random programs that weren't proposed yet.
    """

    of_sketch: dict[str, Scored] = field(default_factory=dict)
    model: CostModel | None = None
    drawn: list[Proposal] = field(default_factory=list)

    def predict(self, model: CostModel) -> None:
        """Predict all programs by this model, unless it predicted them before."""
        filled = {key: scored for key, scored in self.of_sketch.items() if len(scored)}
        if filled and model is not self.model:
            features = np.concatenate([scored.features for scored in filled.values()])
            analytic_s = np.concatenate([scored.analytic_s for scored in filled.values()])
            seconds = model.predict(features, Estimate(analytic_s))
            ends = np.cumsum([len(scored) for scored in filled.values()])
            for (key, scored), part in zip(filled.items(), np.split(seconds, ends[:-1]), strict=True):
                predicted = replace(scored, seconds=part)
                self.of_sketch[key] = predicted.take(np.argsort(part, kind="stable"))
        self.model = model


@dataclass(frozen=True)
class SearchConfig:
    """The rules for picking a batch.

    `max_share_per_tile` is the largest fraction of a batch with the same innermost tile. Only the
    `max_sketches` sketches with the fastest predictions evolve. Their populations together are at most
    `max_total_population` times the population of one sketch. With a learned model, a batch smaller than
    `full_batch_size` gets a proportionally smaller population. A job asks for a few programs of a task at a
    time, and the next evolution continues from the best. Once `trusted_after` programs ran, programs
    predicted to take more than `max_slowdown` times the best time are omitted. Without a learned model,
    `untrained_evolution` is shorter, because a longer one exploits errors of the analytic model. The next
    evolution of a sketch continues from the best `max_known` programs.
    """

    evolution: EvolutionConfig = field(default_factory=EvolutionConfig)
    untrained_evolution: EvolutionConfig = field(
        default_factory=lambda: EvolutionConfig(population=512, generations=2)
    )
    max_share_per_tile: float = 0.25
    max_total_population: int = 4
    max_sketches: int = 8
    full_batch_size: int = 32
    max_slowdown: float = 3.0
    trusted_after: int = 64
    max_known: int = 256

    def evolution_of_one(self, sketches: int, count: int, model: CostModel) -> EvolutionConfig:
        """Return the evolution's sizes for one of several sketches and a batch of `count` programs."""
        whole, part = self.untrained_evolution, 1.0
        if model.is_learned:
            whole, part = self.evolution, min(count / self.full_batch_size, 1.0)
        size = int(
            part * whole.population * self.max_total_population / max(sketches, self.max_total_population)
        )
        return replace(whole, population=max(size, MIN_POPULATION))

    def limit_s(self, model: CostModel, measured: Sequence[tuple[Program, float]]) -> float:
        """Return the predicted seconds beyond which a program isn't worth measuring."""
        ran = [seconds for _, seconds in measured if np.isfinite(seconds)]
        is_trusted = model.is_learned and len(ran) >= self.trusted_after
        return self.max_slowdown * min(ran) if is_trusted else np.inf


Sample = tuple[TuneContext, Program, float]


def train(samples: Sequence[Sample]) -> CostModel:
    """Train a model on samples: (task, program, measured seconds or inf for a failure)."""
    groups: dict[tuple[int, str], list[Sample]] = defaultdict(list)
    for each in samples:
        groups[id(each[0]), each[1].sketch.key].append(each)
    if not groups:
        return CostModel()
    numbers = {task: number for number, task in enumerate(dict.fromkeys(key[0] for key in groups))}
    examples = [
        example
        for group in groups.values()
        for example in group[0][0].examples([program for _, program, _ in group])
    ]
    return CostModel.train(
        Examples(
            np.stack([features for features, _ in examples]),
            np.array([analytic_s for _, analytic_s in examples]),
            np.array([seconds for group in groups.values() for _, _, seconds in group]),
            np.concatenate([np.full(len(group), numbers[key[0]]) for key, group in groups.items()]),
        )
    )


def propose(
    task: TuneContext,
    model: CostModel,
    measured: Sequence[tuple[Program, float]],
    count: int,
    rng: np.random.Generator,
    exclude: Collection[Program] = (),
    config: SearchConfig | None = None,
    initial_programs: Sequence[Program] = (),
    known: KnownPrograms | None = None,
) -> list[Proposal]:
    """Return up to `count` new programs, predicted fastest first, then a few random ones. There are fewer if
    the space is exhausted or nothing else is worth measuring. `measured` pairs programs with their seconds
    (inf for a failure); these programs and `exclude` are not proposed again. Evolution starts from the best
    of them, then from `initial_programs`, such as programs transferred from similar workloads. Evolution
    continues from the `known` programs, which are replaced.
    """
    settings = config or SearchConfig()
    excluded = {program for program, _ in measured} | set(exclude)
    best_first = [
        program for program, seconds in sorted(measured, key=lambda pair: pair[1]) if np.isfinite(seconds)
    ]
    best_first += initial_programs
    found = KnownPrograms() if known is None else known
    found.predict(model)
    if any(map(len, found.of_sketch.values())):
        last = list(found.of_sketch.values())
        evolution = settings.evolution_of_one(len(last), count, model)
        ranked = add_generation(
            last, lambda population: task.score(population, model), best_first, rng, evolution
        )
    else:
        ranked = _begin_evolution(task, model, best_first, count, rng, settings, found)
    for scored in ranked:
        best = scored.take(np.arange(min(len(scored), settings.max_known)))
        found.of_sketch[scored.population.sketch.key] = best
    num_random = int(rng.binomial(count, RANDOM_SHARE)) if measured else 0
    limit = max(1, round(settings.max_share_per_tile * count))
    picked = _pick(ranked, excluded, count - num_random, limit)
    excluded |= {proposal.program for proposal in picked}
    # Random programs correct the model where it is wrong, so their predictions don't matter.
    if len(picked) < count:
        picked += _take_random(task, model, count - len(picked), rng, excluded, found)
    limit_s = settings.limit_s(model, measured)
    picked = [proposal for proposal in picked if proposal.predicted_s <= limit_s]
    task.remember(picked)
    return picked


def _begin_evolution(
    task: TuneContext,
    model: CostModel,
    best_first: Sequence[Program],
    count: int,
    rng: np.random.Generator,
    settings: SearchConfig,
    known: KnownPrograms,
) -> list[Scored]:
    """Evolve the sketches whose best random programs are predicted to be the fastest. The random programs of
    the others are the first known ones.
    """
    sketches = task.sketches
    if len(sketches) > settings.max_sketches:
        drawn = [sample(sketch, OVERSAMPLING * MIN_POPULATION, rng) for sketch in sketches]
        scored = [join([task.score(programs, model)]) for programs in drawn]
        best = [each.seconds.min(initial=np.inf) for each in scored]
        order = np.argsort(best, kind="stable")
        sketches = tuple(sketches[number] for number in order[: settings.max_sketches])
        for number in order[settings.max_sketches :]:
            known.of_sketch[task.sketches[number].key] = scored[number]
    evolution = settings.evolution_of_one(len(sketches), count, model)
    return evolve(sketches, lambda population: task.score(population, model), best_first, rng, evolution)


def _take_random(
    task: TuneContext,
    model: CostModel,
    count: int,
    rng: np.random.Generator,
    excluded: Collection[Program],
    known: KnownPrograms,
) -> list[Proposal]:
    """Return up to `count` random programs that were drawn before. Once none is left, many are drawn, because
    drawing one takes nearly as long.
    """
    found: dict[Program, Proposal] = {}
    for redraws in (False, True):
        if redraws and len(found) < count:
            known.drawn = draw(task, RANDOM_DRAWS, rng)
        while known.drawn and len(found) < count:
            proposal = known.drawn.pop(0)
            if proposal.program not in excluded:
                found.setdefault(proposal.program, proposal)
    if not found:
        return []
    features = np.stack([proposal.features for proposal in found.values()])
    analytic_s = np.array([proposal.estimated_s for proposal in found.values()])
    predicted_s = model.predict(features, Estimate(analytic_s)).tolist()
    return [
        replace(proposal, predicted_s=seconds)
        for proposal, seconds in zip(found.values(), predicted_s, strict=True)
    ]


def _merge(ranked: Sequence[Scored], excluded: Collection[Program]) -> Iterator[Place]:
    """Yield the places of the best new programs of every sketch, predicted fastest first."""
    known = {(program.sketch.key, program.values) for program in excluded}
    most = PICKING_DEPTH + len(excluded)
    rows = [
        zip(each.seconds[:most].tolist(), repeat(number), range(min(len(each), most)))
        for number, each in enumerate(ranked)
    ]
    for _, number, row in merge(*rows):
        population = ranked[number].population
        if (population.sketch.key, tuple(population.values[row].tolist())) not in known:
            yield number, row


def _pick(ranked: Sequence[Scored], excluded: Collection[Program], count: int, limit: int) -> list[Proposal]:
    """Return the best `count` new programs, at most `limit` of one innermost tile as long as there are
    others.
    """
    picked: list[Place] = []
    passed_over: list[Place] = []
    seen: dict[bytes, int] = defaultdict(int)
    tiles: dict[int, Ints] = {}
    for number, row in _merge(ranked, excluded):
        if len(picked) == count:
            break
        if number not in tiles:
            tiles[number] = _innermost_tiles(ranked[number], PICKING_DEPTH + len(excluded))
        tile = tiles[number][row].tobytes()
        seen[tile] += 1
        (picked if seen[tile] <= limit else passed_over).append((number, row))
    # Only a few programs are picked, so the others aren't converted.
    return [_proposal(ranked[number], row) for number, row in picked + passed_over[: count - len(picked)]]


def _innermost_tiles(scored: Scored, most: int) -> Ints:
    """Return the innermost tiles of the first programs [programs, axes of all tiled nodes]."""
    head = scored.population.take(np.arange(min(len(scored), most)))
    tiles = [Nest.of(head, stage).tile.T for stage in head.sketch.tiled]
    return np.ascontiguousarray(np.concatenate([np.zeros((len(head), 0), np.int64), *tiles], axis=1))


def _proposal(scored: Scored, row: int) -> Proposal:
    return Proposal(
        scored.population.program(row),
        float(scored.seconds[row]),
        float(scored.analytic_s[row]),
        scored.features[row].copy(),
    )


def draw(task: TuneContext, count: int, rng: np.random.Generator) -> list[Proposal]:
    """Return up to `count` random programs of all sketches, weighted by estimated speed."""
    each = -(-OVERSAMPLING * count // len(task.sketches))
    drawn = [task.score(sample(sketch, each, rng), CostModel()) for sketch in task.sketches]
    seconds = np.concatenate([scored.seconds for scored in drawn])
    places = [(scored, row) for scored in drawn for row in range(len(scored))]
    # Taking the largest log-weights with Gumbel noise is weighted sampling without replacement.
    keys = rng.gumbel(size=len(places)) - SAMPLING_EXPONENT * np.log(seconds)
    return [_proposal(*places[at]) for at in np.argsort(-keys)[:count]]
