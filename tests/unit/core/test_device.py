from __future__ import annotations

import json
from dataclasses import replace

import pytest

from core.device import Device, Gpu
from tests.unit.search.dags import DEVICE


def test_a_device_survives_json() -> None:
    assert Device.from_json(DEVICE.to_json()) == DEVICE
    assert Device.from_json(DEVICE.to_json()).key == DEVICE.key


def test_the_device_class_excludes_the_name() -> None:
    assert replace(DEVICE, name="another").key == DEVICE.key
    changes = (
        {"cores": 2},
        {"toolchain": "tvm 1"},
        {"features": ("avx2",)},
        {"l3_bytes": 1},
        {"target": "x"},
    )
    assert len({DEVICE.key, *(replace(DEVICE, **change).key for change in changes)}) == 6


def test_the_way_of_timing_is_part_of_the_device_class() -> None:
    alone, in_graph = (replace(DEVICE, gpu=Gpu(timing=timing)) for timing in (1, 2))
    assert alone.key != in_graph.key
    # A GPU that was stored before there was another way keeps its class.
    stored = json.loads(alone.to_json())
    assert "timing" not in stored["gpu"]
    assert Device.from_json(json.dumps(stored)).key == alone.key
    assert Device.from_json(in_graph.to_json()) == in_graph


@pytest.mark.parametrize("field", ["cores", "vector_bytes", "l1_bytes", "l2_bytes", "l3_bytes"])
def test_sizes_are_positive(field: str) -> None:
    with pytest.raises(ValueError, match=f"a device's {field} must be positive, not 0"):
        replace(DEVICE, **{field: 0})  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["", "{}", "[]", "null", '{"name": "board"}', json.dumps({"cores": 1})])
def test_invalid_device_json_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        Device.from_json(text)
