"""Cache the search spaces of workloads: reading one takes milliseconds, and a round needs many."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from cachetools import LRUCache

from compiler import workload
from compiler.lowering.tensor_intrinsics import register_plugins
from compiler.reading.subgraph import UnsupportedSubgraph, read_dag
from core.device import Device
from records.jobs import tasks
from records.storage.database import Database
from search.dag import Dag
from search.evolution.transfer import transfer_programs
from search.policy import KnownPrograms, TuneContext
from search.programs.program import Program, from_json
from search.rules.space import generate
from search.sketches.sketch import Sketch
from system import plugins

MAX_SPACES = 512
# The numbers of operations of workloads with one tag differ by less than this factor.
WORK_RATIO = 1.618

log = logging.getLogger(__name__)


@dataclass
class SearchSpace:
    """The search space of one workload on one device class; `module` is TVM's.

    `rejected` holds unmeasured programs that aren't proposed again: TVM couldn't lower them, or their trace
    equals another program's. The next evolution continues from the `known` programs.
    """

    module: Any
    search_task: TuneContext
    rejected: set[Program] = field(default_factory=set)
    known: KnownPrograms = field(default_factory=KnownPrograms)
    _programs: dict[str, Program | None] = field(default_factory=dict)
    _transferred: dict[str, list[Program]] = field(default_factory=dict)

    @cached_property
    def tag(self) -> str:
        return tag_of(self.search_task.dag)

    def program(self, trace: str, program_json: Mapping[str, Any] | None) -> Program | None:
        """Return the program from which a trace was lowered; None if it isn't stored or no longer fits the
        space.
        """
        if trace not in self._programs:
            self._programs[trace] = None
            if program_json is not None:
                with suppress(ValueError):
                    self._programs[trace] = from_json(self.search_task.sketches, program_json)
        return self._programs[trace]

    def transfer(self, programs: Mapping[str, Program]) -> tuple[Program, ...]:
        """Fit programs of similar workloads, given by trace, to this space. Those given at the last call
        aren't fitted again.
        """
        before, sketches = self._transferred, self.search_task.sketches
        self._transferred = {
            trace: before[trace] if trace in before else transfer_programs([program], sketches)
            for trace, program in programs.items()
        }
        return tuple(dict.fromkeys(chain.from_iterable(self._transferred.values())))


def tag_of(dag: Dag) -> str:
    """Return the tag that similar workloads share: the axis kinds and the number of reads of the heaviest
    node, and the logarithm of the amount of work.
    """
    heaviest = max(dag.nodes, key=lambda node: node.flops * node.iterations)
    nest = "".join(axis.kind for axis in heaviest.axes)
    return f"{nest}{len(heaviest.reads)}:{int(math.log(dag.flops + 1, WORK_RATIO))}"


def sketches_of(dag: Dag, device: Device) -> tuple[Sketch, ...]:
    """Return all sketches of a subgraph, with the rules and intrinsics of plug-ins. Raises PluginError."""
    register_plugins()
    return generate(dag, device, [one.value for one in plugins.extensions(plugins.RULES)])


class Spaces:
    """The search spaces of recently used workloads, by hash and device class."""

    def __init__(self, database: Database, max_spaces: int = MAX_SPACES) -> None:
        self._database = database
        # Rounds and publishing are separate threads.
        self._lock = threading.Lock()
        # None marks a workload that the search doesn't cover.
        self._cache: LRUCache[tuple[str, str], SearchSpace | None] = LRUCache(max_spaces)

    def load(self, hashes: Collection[str], device: Device) -> dict[str, SearchSpace]:
        """Return the spaces of the given workloads by hash, without workloads that aren't stored or covered
        by the search.
        """
        with self._lock:
            return self._load(hashes, device)

    def _load(self, hashes: Collection[str], device: Device) -> dict[str, SearchSpace]:
        found = {name: self._cache[name, device.key] for name in hashes if self._is_fresh(name, device)}
        missing = [name for name in dict.fromkeys(hashes) if name not in found]
        if missing:
            with self._database.begin() as session:
                texts = tasks.workloads(session, missing)
            for name, text in texts.items():
                found[name] = self._cache[name, device.key] = _read(name, text, device)
        return {name: space for name, space in found.items() if space is not None}

    def _is_fresh(self, name: str, device: Device) -> bool:
        """Return whether a space with the estimates of the device's current profile is cached."""
        if (name, device.key) not in self._cache:
            return False
        space = self._cache[name, device.key]
        return space is None or space.search_task.device.profile == device.profile


def _read(name: str, module_json: str, device: Device) -> SearchSpace | None:
    try:
        module = workload.from_json(module_json)
        if workload.workload_hash(module) != name:
            # An import stored the module under a wrong hash, so its measurements would belong to another
            # workload.
            raise ValueError("the stored module has another hash")
        dag = read_dag(module)
        return SearchSpace(module, TuneContext(dag, sketches_of(dag, device), device))
    except (ValueError, UnsupportedSubgraph) as error:
        log.warning("workload %s is left out of the search: %s", name, error)
    except Exception:
        log.exception("workload %s is left out of the search", name)
    return None
