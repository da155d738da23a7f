from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda_emulator.driver import StandIn, build


@pytest.fixture(scope="session")
def built_stand_in(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    return build(tmp_path_factory.mktemp("stand-in"))


@pytest.fixture
def stand_in(built_stand_in: StandIn, tmp_path: Path) -> StandIn:
    """A stand-in GPU whose behaviour the test sets."""
    return built_stand_in.copy(tmp_path / "stand-in")
