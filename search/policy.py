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
    `model`. Empty before the first evolution.
    """

    of_sketch: dict[str, Scored] = field(default_factory=dict)
    model: CostModel | None = None

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
    full_batch_size: int = 16
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
    picked = _pick(_merge(ranked, excluded), count - num_random, limit)
    excluded |= {proposal.program for proposal in picked}
    # Random programs correct the model where it is wrong, so their predictions don't matter.
    if len(picked) < count:
        drawn = [program for program in draw(task, RANDOM_DRAWS, rng) if program not in excluded]
        picked += _predicted(task, drawn[: count - len(picked)], model)
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


def _predicted(task: TuneContext, programs: Sequence[Program], model: CostModel) -> list[Proposal]:
    """Predict single programs."""
    examples = task.examples(programs)
    if not examples:
        return []
    features, estimated_s = np.stack([one for one, _ in examples]), np.array([s for _, s in examples])
    predicted_s = model.predict(features, Estimate(estimated_s))
    return [
        Proposal(program, float(predicted), float(estimated), described)
        for program, predicted, estimated, described in zip(
            programs, predicted_s, estimated_s, features, strict=True
        )
    ]


def _merge(
    ranked: Sequence[Scored], excluded: Collection[Program], depth: int = 256
) -> Iterator[tuple[Proposal, object]]:
    """Yield the best `depth` new programs of every sketch with their innermost tiles, predicted fastest
    first.
    """
    known = {(program.sketch.key, program.values) for program in excluded}
    most = depth + len(excluded)
    rows = [
        zip(each.seconds[:most].tolist(), repeat(number), range(min(len(each), most)))
        for number, each in enumerate(ranked)
    ]
    tiles: dict[int, list[Ints]] = {}
    # Only a few programs are picked, so the others aren't converted.
    for seconds, number, row in merge(*rows):
        each = ranked[number]
        sketch, values = each.population.sketch, tuple(each.population.values[row].tolist())
        if (sketch.key, values) in known:
            continue
        if number not in tiles:
            head = each.population.take(np.arange(min(len(each), most)))
            tiles[number] = [Nest.of(head, stage).tile.T for stage in sketch.tiled]
        yield (
            Proposal(
                Program(sketch, values), seconds, float(each.analytic_s[row]), each.features[row].copy()
            ),
            tuple(tile[row].tobytes() for tile in tiles[number]),
        )


def _pick(candidates: Iterator[tuple[Proposal, object]], count: int, limit: int) -> list[Proposal]:
    """Return the first `count` proposals, at most `limit` of one tile as long as there are others."""
    picked: list[Proposal] = []
    passed_over: list[Proposal] = []
    seen: dict[object, int] = defaultdict(int)
    for proposal, tile in candidates:
        if len(picked) == count:
            break
        seen[tile] += 1
        (picked if seen[tile] <= limit else passed_over).append(proposal)
    return picked + passed_over[: count - len(picked)]


def draw(task: TuneContext, count: int, rng: np.random.Generator) -> list[Program]:
    """Return up to `count` random programs of all sketches, weighted by estimated speed."""
    drawn = [sample(sketch, -(-OVERSAMPLING * count // len(task.sketches)), rng) for sketch in task.sketches]
    seconds = np.concatenate([estimate(population, task.device).seconds for population in drawn])
    places = [(population, row) for population in drawn for row in range(len(population))]
    # Taking the largest log-weights with Gumbel noise is weighted sampling without replacement.
    keys = rng.gumbel(size=len(places)) - SAMPLING_EXPONENT * np.log(seconds)
    return [places[at][0].program(places[at][1]) for at in np.argsort(-keys)[:count]]
