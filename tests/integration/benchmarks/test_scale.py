"""A few simulated workers on a real server, PostgreSQL and Redis."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import figures, scale
from records.database import Database
from records.trials import counts
from tests.services import Postgresql


@pytest.mark.slow
@pytest.mark.usefixtures("postgresql", "redis_server")  # skipped where these are not installed
def test_figures_of_a_small_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "TRIAL_S", 0.02)
    monkeypatch.setattr(scale, "MIN_LEASES", 2)
    file = tmp_path / "scale.json"
    assert scale.main(["--workers", "8", "--seconds", "3", "--json", str(file)]) == 0
    found = figures.read(file).figures
    assert len(found) == 5
    assert all(one.value > 0 for one in found[:4])
    assert found[4].value == 0


def test_jobs_are_filled_with_work(postgresql: Postgresql) -> None:
    database = Database(postgresql.create("filled"))
    database.migrate()
    made = scale.fill(database, classes=2, each=3)
    with database.begin() as session:
        assert [counts(session, job_id).pending for job_id in made] == [3, 3]
    database.close()
