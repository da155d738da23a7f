"""A pytest plugin that selects how much of the slow lane runs, and starts with the longest tests.

A test marked `slow_lane` always runs when pytest is called without `--slow-lane`. `make test` leaves these
tests out. `.ci/run` runs one of PARTS parts, chosen by the commit's hash; together, the parts are the whole
lane. `make test-all` runs all.
"""

from __future__ import annotations

import os
import subprocess
from collections import defaultdict
from collections.abc import Generator, Sequence
from functools import cache
from pathlib import Path

import pytest

PARTS = 10
# The CPU seconds of a test whose mark names none: `@pytest.mark.slow_lane(seconds=60)`.
USUAL_S = 2.0
# Tests that take so many CPU seconds start first.
LONG_S = 20.0


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow-lane",
        choices=("none", "part", "all"),
        default="all",
        help="how many tests of the slow lane run (default: all)",
    )
    parser.addoption(
        "--commit",
        default=None,
        help="the hash that chooses the part and seeds random programs (default: Git's HEAD)",
    )


def pytest_report_header(config: pytest.Config) -> str:
    return f"slow lane: {config.getoption('slow_lane')}, commit {commit(config)}"


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> Generator[None, object, object]:
    """Select before others deselect, and order what they leave."""
    _select(config, items)
    result = yield
    items[:] = _in_order(items, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
    return result


def _select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the slow lane `slow`, and deselect the tests of it that don't run."""
    lane = [item for item in items if item.get_closest_marker("slow_lane")]
    for item in lane:
        item.add_marker(pytest.mark.slow)
    chosen = config.getoption("slow_lane")
    if chosen == "all":
        return
    part = int(commit(config), 16) % PARTS
    left_out = lane
    if chosen == "part":
        left_out = [item for item, its in zip(lane, parts_of(lane), strict=True) if its != part]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        names = {item.nodeid for item in left_out}
        items[:] = [item for item in items if item.nodeid not in names]


def _in_order(items: Sequence[pytest.Item], processes: int) -> list[pytest.Item]:
    """Deal the longest tests to all processes, then the other slow ones. The last tests, which worksteal
    distributes, are short.
    """
    long = sorted((item for item in items if seconds_of(item) >= LONG_S), key=seconds_of, reverse=True)
    others = [item for item in items if seconds_of(item) < LONG_S]
    slow = [item for item in others if item.get_closest_marker("slow")]
    quick = [item for item in others if not item.get_closest_marker("slow")]
    ordered: list[pytest.Item] = []
    for number in range(processes):
        ordered += long[number::processes]
        for tests in (slow, quick):
            ordered += tests[len(tests) * number // processes : len(tests) * (number + 1) // processes]
    return ordered


def parts_of(lane: Sequence[pytest.Item]) -> list[int]:
    """Return the part of each test in the slow lane, from 0 to PARTS - 1.

    Tests of a file share fixtures, so they belong to one part, except for the values of parametrized tests.
    The longest of these units come first. Each goes to the part that takes the fewest seconds so far.
    """
    units = [item.nodeid if "[" in item.nodeid else item.nodeid.partition("::")[0] for item in lane]
    seconds = defaultdict[str, float](float)
    for unit, item in zip(units, lane, strict=True):
        seconds[unit] += seconds_of(item)
    totals, parts = [0.0] * PARTS, {}
    for unit in sorted(seconds, key=lambda unit: (-seconds[unit], unit)):
        parts[unit] = part = totals.index(min(totals))
        totals[part] += seconds[unit]
    return [parts[unit] for unit in units]


def seconds_of(item: pytest.Item) -> float:
    """Return the CPU seconds of a test in the slow lane, as its mark says; 0 for other tests."""
    mark = item.get_closest_marker("slow_lane")
    return float(mark.kwargs.get("seconds", USUAL_S)) if mark else 0.0


def commit(config: pytest.Config) -> str:
    """Return the commit under test in hexadecimal; "0" outside a Git checkout."""
    given: str | None = config.getoption("commit")
    return given or _head()


@cache
def _head() -> str:
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True
        )
    except FileNotFoundError:
        return "0"
    return done.stdout.strip() if done.returncode == 0 else "0"


@pytest.fixture(scope="session")
def commit_seed(pytestconfig: pytest.Config) -> int:
    """Return a seed that changes with the commit; `--commit` repeats the draw of an earlier one."""
    return int(commit(pytestconfig), 16) % 2**32
