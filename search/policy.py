"""What to measure next for one task: the face of the search towards the scheduler."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from core.device import Device
from search.cost.analytic import estimate
from search.cost.features import extract
from search.cost.model import CostModel, Examples
from search.dag import Dag
from search.evolution.evolve import EvolutionConfig, evolve
from search.programs.annotate import sample
from search.programs.nest import Floats, Nest
from search.programs.program import Population, Program, gather
from search.sketches.sketch import Sketch
from search.sketches.stage import Estimate

RANDOM_SHARE = 0.05
RANDOM_DRAWS = 64
MIN_POPULATION = 32
# So many times as many programs are drawn as are kept of them, likelier the better the estimate.
DRAWN_FOR_EACH = 8
# A program that is estimated to be twice as fast is two to this power times as likely.
FAVOUR = 3.0


@dataclass(frozen=True)
class SearchTask:
    """One workload on one device class."""

    dag: Dag
    sketches: tuple[Sketch, ...]
    device: Device

    def describe(self, population: Population) -> tuple[NDArray[np.float32], Estimate]:
        guess = estimate(population, self.device)
        return extract(self.dag, guess), guess

    def predict(self, population: Population, model: CostModel) -> Floats:
        """Predicted seconds [programs]."""
        return model.predict(*self.describe(population))


@dataclass(frozen=True)
class Proposal:
    program: Program
    predicted_s: float


@dataclass(frozen=True)
class SearchConfig:
    """How a batch is picked: `same_tile` is the largest share of it with one innermost tile. Only the most
    promising `sketches` evolve, together no more than `populations` times the programs of one. With a
    learned model, there are as many fewer where a batch is smaller than `whole_batch`: a job asks for a few
    programs of a task at a time, and goes on from the best of them the next time. Once so many programs ran
    (`trusted_after`), those that the learned model predicts to take `hopeless` times as long as the best are
    left out.

    Under the analytic model alone evolution is shorter (`blind`): the longer it runs, the more of what it
    finds are the model's errors (C2D, best of the first 8: 543 us after 4 generations of 512, 2539 us after
    8 of 1024)."""

    evolution: EvolutionConfig = field(default_factory=EvolutionConfig)
    blind: EvolutionConfig = field(default_factory=lambda: EvolutionConfig(population=512, generations=4))
    same_tile: float = 0.25
    populations: int = 4
    sketches: int = 8
    whole_batch: int = 16
    hopeless: float = 3.0
    trusted_after: int = 64

    def share(self, sketches: int, count: int, model: CostModel) -> EvolutionConfig:
        """The evolution of one sketch among so many, for a batch of so many programs."""
        whole, part = self.blind, 1.0
        if model.is_learned:
            whole, part = self.evolution, min(count / self.whole_batch, 1.0)
        size = int(part * whole.population * self.populations / max(sketches, self.populations))
        return replace(whole, population=max(size, MIN_POPULATION))

    def limit_s(self, model: CostModel, measured: Sequence[tuple[Program, float]]) -> float:
        """What is predicted to take longer isn't worth measuring."""
        ran = [seconds for _, seconds in measured if np.isfinite(seconds)]
        is_trusted = model.is_learned and len(ran) >= self.trusted_after
        return self.hopeless * min(ran) if is_trusted else np.inf


Sample = tuple[SearchTask, Program, float]


def train(samples: Sequence[Sample]) -> CostModel:
    """A model of every sample: (task, program, measured seconds or inf for a failure)."""
    groups: dict[tuple[int, str], list[Sample]] = defaultdict(list)
    for item in samples:
        groups[id(item[0]), item[1].sketch.key].append(item)
    if not groups:
        return CostModel()
    numbers = {task: number for number, task in enumerate(dict.fromkeys(key[0] for key in groups))}
    features, analytic, measured, tasks = [], [], [], []
    for (task_id, _), items in groups.items():
        described, guess = items[0][0].describe(gather([program for _, program, _ in items]))
        features.append(described)
        analytic.append(guess.seconds)
        measured.append(np.array([seconds for _, _, seconds in items]))
        tasks.append(np.full(len(items), numbers[task_id]))
    return CostModel.train(
        Examples(
            np.concatenate(features),
            np.concatenate(analytic),
            np.concatenate(measured),
            np.concatenate(tasks),
        )
    )


def propose(
    task: SearchTask,
    model: CostModel,
    measured: Sequence[tuple[Program, float]],
    count: int,
    rng: np.random.Generator,
    exclude: Collection[Program] = (),
    config: SearchConfig | None = None,
    seeds: Sequence[Program] = (),
) -> list[Proposal]:
    """Up to `count` new programs, best predicted first, a few of them random; fewer when the space ends or
    nothing else is worth measuring.

    `measured` pairs programs with their seconds (inf for a failure); neither they nor `exclude` come again.
    Evolution begins with the best of them, then `seeds` (such as what was good for similar workloads).
    """
    settings = config or SearchConfig()
    known = {program for program, _ in measured} | set(exclude)
    best_first = [
        program for program, seconds in sorted(measured, key=lambda m: m[1]) if np.isfinite(seconds)
    ]
    best_first += seeds
    sketches = _promising(task, model, settings.sketches, rng)
    share = settings.share(len(sketches), count, model)
    ranked = [evolve(sketch, lambda p: task.predict(p, model), best_first, rng, share) for sketch in sketches]
    num_random = int(rng.binomial(count, RANDOM_SHARE)) if measured else 0
    limit = max(1, round(settings.same_tile * count))
    picked = _pick(_merge(ranked, known), count - num_random, limit)
    known |= {proposal.program for proposal in picked}
    picked += _pick(_random(task, model, known, rng), count - len(picked), count)
    limit_s = settings.limit_s(model, measured)
    return [proposal for proposal in picked if proposal.predicted_s <= limit_s]


def _merge(
    ranked: Sequence[tuple[Population, Floats]], known: Collection[Program], depth: int = 256
) -> Iterator[tuple[Proposal, object]]:
    """The best of every sketch in one order, with the innermost tile of each; what is known left out."""
    heads = [population.take(np.arange(min(len(population), depth + len(known)))) for population, _ in ranked]
    tiles = [_tiles(head) for head in heads]
    rows = [
        (float(ranked[number][1][row]), number, row)
        for number, head in enumerate(heads)
        for row in range(len(head))
    ]
    for seconds, number, row in sorted(rows):
        program = heads[number].program(row)
        if program not in known:
            yield Proposal(program, seconds), tiles[number][row]


def _tiles(population: Population) -> list[object]:
    """What near-copies share, for every program: the innermost factors of every tiled node."""
    tiles = [Nest.of(population, stage).tile.T for stage in population.sketch.tiled]
    return [tuple(tile[row].tobytes() for tile in tiles) for row in range(len(population))]


def _pick(candidates: Iterator[tuple[Proposal, object]], count: int, limit: int) -> list[Proposal]:
    picked: list[Proposal] = []
    passed_over: list[Proposal] = []
    seen: dict[object, int] = defaultdict(int)
    for proposal, tile in candidates:
        if len(picked) == count:
            break
        seen[tile] += 1
        (picked if seen[tile] <= limit else passed_over).append(proposal)
    return picked + passed_over[: count - len(picked)]


def _promising(task: SearchTask, model: CostModel, limit: int, rng: np.random.Generator) -> list[Sketch]:
    """The sketches whose best random programs are predicted to be the fastest."""
    if len(task.sketches) <= limit:
        return list(task.sketches)
    drawn = [sample(sketch, DRAWN_FOR_EACH * MIN_POPULATION, rng) for sketch in task.sketches]
    best = [task.predict(programs, model).min(initial=np.inf) for programs in drawn]
    return [task.sketches[number] for number in np.argsort(best, kind="stable")[:limit]]


def draw(task: SearchTask, count: int, rng: np.random.Generator) -> list[Program]:
    """Up to `count` random programs: every one of every sketch is possible, and the likelier the better it
    uses registers, caches and cores as the analytic estimate has it."""
    drawn = [
        sample(sketch, -(-DRAWN_FOR_EACH * count // len(task.sketches)), rng) for sketch in task.sketches
    ]
    seconds = np.concatenate([estimate(population, task.device).seconds for population in drawn])
    places = [(population, row) for population in drawn for row in range(len(population))]
    # The largest of log-weights with Gumbel noise are a draw by weight, without putting back.
    keys = rng.gumbel(size=len(places)) - FAVOUR * np.log(seconds)
    chosen = np.argsort(-keys)[:count]
    return [places[at][0].program(places[at][1]) for at in chosen]


def _random(
    task: SearchTask, model: CostModel, known: Collection[Program], rng: np.random.Generator
) -> Iterator[tuple[Proposal, object]]:
    """Programs nobody asked the model about, so that it also learns where it is wrong."""
    for program in draw(task, RANDOM_DRAWS, rng):
        if program not in known:
            yield Proposal(program, float(task.predict(gather([program]), model)[0])), program
