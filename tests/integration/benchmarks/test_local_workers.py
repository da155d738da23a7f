"""One and two real workers with real TVM on a real service."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import local_workers
from benchmarks.results import figures


@pytest.mark.slow_lane(seconds=40)
@pytest.mark.timeout(300)
@pytest.mark.skipif(len(local_workers.own_cores()) < 2, reason="two workers need two cores")
def test_each_worker_has_its_own_cores(tmp_path: Path) -> None:
    file = tmp_path / "local_workers.json"
    given = ["--tiny", "--runs", "1", "--trials", "24", "--json", str(file)]
    assert local_workers.main(given) == 0
    found = figures.read(file).figures
    assert len(found) == 9
    assert all(one.value > 0 for one in found if one.unit != "%")
