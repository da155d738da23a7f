"""The benchmark of look-ups runs with a small load on both databases."""

from __future__ import annotations

import pytest

from benchmarks import lookup
from tests import services


@pytest.mark.slow_lane(seconds=38)
def test_every_load_writes_figures() -> None:
    try:
        found = lookup.measure(lookup.Size(records=4000, jobs=lookup.SUBMITTED + 10, trials=60, seconds=0.3))
    except services.Missing as missing:
        pytest.skip(str(missing))
    names = [figure.name for figure in found]
    assert len(names) == len(set(names)) == 30
    assert all(figure.value > 0 for figure in found)
    assert {figure.aim for figure in found} >= {"at least 2000", "at least 4000", "at most 20", "at most 500"}
