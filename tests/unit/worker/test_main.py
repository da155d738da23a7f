from __future__ import annotations

import pytest

from worker.main import agent_config
from worker.settings import MAX_BUILT_TOGETHER, SLOTS, WorkerSettings


@pytest.mark.parametrize(("slots", "together"), [(SLOTS, MAX_BUILT_TOGETHER), (4, 4)])
def test_no_more_is_built_at_once_than_fits_in_memory(slots: int, together: int) -> None:
    config = agent_config(WorkerSettings(server="farm:1", slots=slots))
    assert (config.slots, config.build_together) == (slots, together)


@pytest.mark.parametrize(("threads", "together"), [(1, 1), (4, 3), (64, MAX_BUILT_TOGETHER)])
def test_a_gpu_waits_for_one_candidate_of_each_building_thread(threads: int, together: int) -> None:
    settings = WorkerSettings(server="farm:1", gpu=0, threads=threads)
    assert agent_config(settings).build_together == together
