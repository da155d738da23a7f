"""Workloads with their search spaces, kept by hash: parsing one takes milliseconds, a plan needs many."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from compiler import workload
from compiler.reading.subgraph import UnsupportedSubgraph, read_dag
from core.device import Device
from records.jobs import tasks
from records.storage.database import Database
from search.dag import Dag
from search.policy import SearchTask
from search.programs.program import Program, from_json
from search.rules.space import generate

LIMIT = 512
SIMILAR = 1.618

log = logging.getLogger(__name__)


@dataclass
class Space:
    """One workload on one device class; `module` is TVM's.

    `spent` are programs not worth proposing again though nobody measured them: TVM refused them, or they
    lower to a trace that another program has. `seeds` are programs that were good for similar workloads, with
    the traces that they were made of.
    """

    module: Any
    search: SearchTask
    spent: set[Program] = field(default_factory=set)
    seeds: tuple[frozenset[str], tuple[Program, ...]] = (frozenset(), ())
    _programs: dict[str, Program | None] = field(default_factory=dict)

    @cached_property
    def tag(self) -> str:
        return tag_of(self.search.dag)

    def program(self, trace: str, data: Mapping[str, Any] | None) -> Program | None:
        """The program that a trace was made of, as its stored `data` say; None when that no longer fits the
        space (or never was ours)."""
        if trace not in self._programs:
            self._programs[trace] = _program(self.search, data)
        return self._programs[trace]


def tag_of(dag: Dag) -> str:
    """Workloads of one tag are alike: the same kind of loop nest at their heart, the same order of work."""
    heart = max(dag.nodes, key=lambda node: node.flops * node.iterations)
    nest = "".join(axis.kind for axis in heart.axes)
    return f"{nest}{len(heart.reads)}:{int(math.log(dag.flops + 1, SIMILAR))}"


@dataclass
class Spaces:
    """The last `LIMIT` spaces used."""

    _spaces: dict[tuple[str, str], Space | None] = field(default_factory=dict)

    def load(self, database: Database, hashes: Collection[str], device: Device) -> dict[str, Space]:
        """The spaces of those workloads that are stored and covered by the search."""
        wanted = dict.fromkeys(hashes)
        missing = [name for name in wanted if not self._is_known(name, device)]
        if missing:
            with database.begin() as session:
                texts = tasks.workloads(session, missing)
            for name in missing:
                self._spaces[name, device.key] = _parse(name, texts[name], device) if name in texts else None
        found = {name: self._touch(name, device.key) for name in wanted}
        self._forget(max(LIMIT, len(wanted)))
        return {name: space for name, space in found.items() if space is not None}

    def _is_known(self, name: str, device: Device) -> bool:
        """Not when the device has been calibrated since: its estimates would be those of the old profile."""
        space = self._spaces.get((name, device.key))
        if space is None:
            return (name, device.key) in self._spaces
        return space.search.device.profile == device.profile

    def _touch(self, name: str, device_class: str) -> Space | None:
        space = self._spaces.pop((name, device_class))
        self._spaces[name, device_class] = space
        return space

    def _forget(self, limit: int) -> None:
        for key in list(self._spaces)[: max(len(self._spaces) - limit, 0)]:
            del self._spaces[key]


def _program(task: SearchTask, data: Mapping[str, Any] | None) -> Program | None:
    try:
        return from_json(task.sketches, data) if data is not None else None
    except ValueError:
        return None


def _parse(name: str, text: str, device: Device) -> Space | None:
    try:
        module = workload.from_json(text)
        if workload.workload_hash(module) != name:
            # Stored by an import that named it wrongly: what is measured of it says nothing of `name`.
            raise ValueError("the stored module has another hash")
        dag = read_dag(module)
    except (ValueError, UnsupportedSubgraph) as error:
        log.warning("workload %s is left out of the search: %s", name, error)
        return None
    return Space(module, SearchTask(dag, generate(dag, device), device))
