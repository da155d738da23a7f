"""Workloads are parsed once, and only under their own hash."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from compiler import workload
from records.jobs import tasks
from scheduler import spaces
from scheduler.spaces import Spaces
from search.evolution.transfer import transfer_programs
from search.policy import draw
from search.programs.program import Program
from search.sketches.sketch import Sketch
from tests import workloads
from tests.unit.scheduler.farm import CONV, CUMSUM, DEVICE, MATMUL, Farm, extracted

LATER = extracted("later", workloads.matmul(8, 8, 8), 1)
NAMES = [task.workload_hash for task in (MATMUL, CONV, CUMSUM)]


@pytest.fixture(autouse=True)
def stored(farm: Farm) -> None:
    with farm.database.begin() as session:
        for task in (MATMUL, CONV, CUMSUM):
            tasks.put_workload(session, task.workload_hash, task.module_json)
        tasks.put_workload(session, "misnamed", MATMUL.module_json)
        tasks.put_workload(session, "damaged", "{}")


def test_only_covered_workloads_are_loaded(farm: Farm) -> None:
    names = [*NAMES, "misnamed", "damaged", "unknown"]
    assert set(Spaces(farm.database).load(names, DEVICE)) == {MATMUL.workload_hash, CONV.workload_hash}


def test_a_workload_is_parsed_once(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = Spaces(farm.database)
    first = loaded.load(NAMES, DEVICE)
    monkeypatch.setattr(workload, "from_json", None)
    second = loaded.load(NAMES, DEVICE)
    assert all(second[name] is space for name, space in first.items())


def test_a_workload_that_is_stored_later_is_found(farm: Farm) -> None:
    loaded, name = Spaces(farm.database), LATER.workload_hash
    assert loaded.load([name], DEVICE) == {}
    with farm.database.begin() as session:
        tasks.put_workload(session, name, LATER.module_json)
    assert set(loaded.load([name], DEVICE)) == {name}


def test_a_program_of_a_similar_workload_is_fitted_once(farm: Farm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best programs of similar workloads change with nearly every batch, but only a few of them."""
    with farm.database.begin() as session:
        tasks.put_workload(session, LATER.workload_hash, LATER.module_json)
    found = Spaces(farm.database).load([MATMUL.workload_hash, LATER.workload_hash], DEVICE)
    space, other = found[MATMUL.workload_hash], found[LATER.workload_hash]
    drawn = draw(other.search_task, 3, np.random.default_rng(0))
    programs = {f"trace {number}": proposal.program for number, proposal in enumerate(drawn)}
    fitted: list[int] = []

    def counted(given: Sequence[Program], sketches: Sequence[Sketch]) -> list[Program]:
        fitted.append(len(given))
        return transfer_programs(given, sketches)

    monkeypatch.setattr(spaces, "transfer_programs", counted)
    for count in (1, 2, 3, 3):
        given = dict(list(programs.items())[:count])
        expected = transfer_programs(list(given.values()), space.search_task.sketches)
        assert space.transfer(given) == tuple(expected) != ()
    assert sum(fitted) == 3


def test_the_spaces_used_least_recently_are_dropped(farm: Farm) -> None:
    loaded = Spaces(farm.database, max_spaces=2)
    matmul = loaded.load([MATMUL.workload_hash], DEVICE)[MATMUL.workload_hash]
    conv = loaded.load([CONV.workload_hash], DEVICE)[CONV.workload_hash]
    loaded.load([MATMUL.workload_hash, CUMSUM.workload_hash], DEVICE)
    assert loaded.load([MATMUL.workload_hash], DEVICE)[MATMUL.workload_hash] is matmul
    assert loaded.load([CONV.workload_hash], DEVICE)[CONV.workload_hash] is not conv


def test_workloads_of_other_kinds_have_other_tags(farm: Farm) -> None:
    loaded = Spaces(farm.database).load(NAMES, DEVICE)
    assert loaded[MATMUL.workload_hash].tag.startswith("SSR")
    assert loaded[MATMUL.workload_hash].tag != loaded[CONV.workload_hash].tag


def test_a_new_profile_rebuilds_the_search_spaces(farm: Farm) -> None:
    loaded, name = Spaces(farm.database), MATMUL.workload_hash
    first = loaded.load([name], DEVICE)[name]
    calibrated = replace(DEVICE, profile=replace(DEVICE.speeds, hertz=1e9))
    second = loaded.load([name], calibrated)[name]
    assert first.search_task.device.profile is None
    assert second.search_task.device.profile == calibrated.profile
    assert loaded.load([name], calibrated)[name] is second
