"""A GPU's calibrated rates are possible, and its streams never hit a multiprocessor's own cache."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import pytest

from compiler.measuring import gpu_calibration
from compiler.measuring.gpu_calibration import Stream, calibrate_gpu, check_possible, complete_gpu_profile
from core.device import Device
from core.profile import assumed_gpu_profile
from tests.devices import GPU

CORES = 132
BASE = assumed_gpu_profile(CORES)
# What an H200 answered, all but the cache's rate.
H200 = {
    "gather_cycles": 623.7,
    "hertz": 1.98e9,
    "l1_rate": 122.65,
    "loads": 7.67,
    "latency_cycles": 4.2475,
    "launch_s": 5.98e-6,
    "memory_rate_all": 2288.5,
    "fma float32": 28.4,
    "fma float64": 29.4,
    "fma tensorfloat16": 151.9,
    "fma tensorint8": 112.8,
}


def test_rates_of_an_h200_are_possible() -> None:
    check_possible(H200 | {"l2_rate": 30.0}, CORES)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("l2_rate", 5719.7),  # the loads of all steps but the first were left out
        ("l1_rate", 250.0),
        ("loads", 16.0),
        ("memory_rate_all", 100.0 * CORES),
        ("fma int32", 100.0),
        ("fma tensorfloat16", 2000.0),
        ("latency_cycles", 0.1),
        ("gather_cycles", 20.0),
        ("launch_s", 1e-11),
    ],
)
def test_an_impossible_quantity_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"^{name} of .* is impossible"):
        check_possible(H200 | {name: value}, CORES)


def test_an_impossible_quantity_is_assumed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Answers:
        def __init__(self, device: Device) -> None:
            pass

        def quantities(self) -> dict[str, Callable[[], dict[str, float]]]:
            return {
                "the launch of a kernel": lambda: {"launch_s": 2e-6, "hertz": 1.98e9},
                "the memory's rate": lambda: {"memory_rate_all": 2288.5},
                "the cache's rate": lambda: {"l2_rate": 5719.7},
                "the multiply-adds of float32": lambda: {"fma float32": 28.4},
            }

    monkeypatch.setattr(gpu_calibration, "_GpuCalibration", Answers)
    profile = calibrate_gpu(replace(GPU, cores=CORES), 60.0)
    assert profile.l2_rate == BASE.l2_rate
    assert "l2_rate" in profile.derived
    assert (profile.memory_rate_all, profile.multiply_adds["float32"]) == (2288.5, 28.4)
    assert "the cache's rate can't be calibrated: l2_rate of 5720 is impossible" in caplog.text


def test_both_levels_of_the_cache_are_the_same_one_and_as_fast_as_memory() -> None:
    device = replace(GPU, cores=CORES)
    measured = complete_gpu_profile({"l2_rate": 25.0, "memory_rate_all": 2288.5}, device)
    assert (measured.l2_rate, measured.l3_rate) == (25.0, 25.0)
    noisy = complete_gpu_profile({"l2_rate": 5.0, "memory_rate_all": 2288.5}, device)
    assert noisy.l2_rate == noisy.l3_rate == noisy.memory_rate == pytest.approx(2288.5 / CORES)


# Caches of an H200, an RTX 3090 and a small Jetson, on multiprocessors whose L1 cache has up to 256 KiB.
@pytest.mark.parametrize(("size", "cores"), [(62914560 // 4, 132), (6 << 18, 82), (1 << 20, 16)])
def test_a_block_comes_back_to_a_part_after_more_bytes_than_its_l1_cache_has(size: int, cores: int) -> None:
    grid = Stream.of(size, cores, 1024)
    parts, turns = grid.vectors // grid.threads, grid.vectors // grid.everyone
    assert parts * grid.threads == grid.vectors
    assert size * 0.5 <= 16 * grid.vectors <= size * 1.5
    for block in (0, 1, cores - 1):
        # The parts that one block reads one after the other, as in the kernel.
        places = [block]
        for _ in range(4 * parts):
            place = places[-1] + grid.blocks
            places.append(place - parts if place >= parts else place)
        assert max(places) < parts
        last: dict[int, int] = {}
        for number, place in enumerate(places):
            distance = number - last.get(place, -parts)
            assert distance * grid.threads * 16 > 256 << 10
            last[place] = number
        assert set(places) == set(range(parts)), "all of the working set is read"
    first_turn = {block + turn * grid.blocks for block, turn in itertools.product(range(cores), range(turns))}
    assert len(first_turn) == parts - 1
