from __future__ import annotations

import pytest

from worker.main import _manners
from worker.settings import SLOTS, TOGETHER, Settings


@pytest.mark.parametrize(("slots", "together"), [(SLOTS, TOGETHER), (4, 4)])
def test_no_more_is_built_at_once_than_fits_in_memory(slots: int, together: int) -> None:
    manners = _manners(Settings(server="farm:1", slots=slots))
    assert (manners.slots, manners.build_together) == (slots, together)
