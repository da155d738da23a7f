"""The estimate of products of rows of int8 and blocks of packed weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from core.device import Device
from search.cost.analytic import estimate
from search.dag import Dag
from search.programs.nest import Floats
from search.programs.program import gather
from tests.unit.search.builders import dag, node
from tests.unit.search.dags import DEVICE
from tests.unit.search.programs import program_of, sketch_of

HASWELL = replace(DEVICE, features=("avx2", "fma"), vector_bytes=32)
ALDER_LAKE = replace(HASWELL, features=("avx2", "avx_vnni", "fma"))
BLOCKS, STEPS, ROWS, COLUMNS = 4, 4, 2, 32
RATES = ("dotuint8", "dotint16", "int8", "float32")


def _product(bits: int) -> Dag:
    """A product of rows and blocks of 32 codes. A byte holds two codes of 4 bits."""
    halves, code = ((2,), "codes[b, p, h, r, j]") if bits == 8 else ((), "codes[b, p, r, j]")
    shapes = {
        "s": (ROWS, BLOCKS),
        "f": (BLOCKS, COLUMNS),
        "q": (ROWS, BLOCKS, STEPS, 2, 4),
        "codes": (BLOCKS, STEPS, *halves, 4, COLUMNS),
        "zeros": (BLOCKS, COLUMNS),
    }
    reads = ["s[i, b]", "f[b, j]", "q[i, b, p, h, r]", code, "zeros[b, j]"]
    summed = {"b": BLOCKS, "p": STEPS, "h": 2, "r": 4}
    product = node("product", {"i": ROWS, "j": COLUMNS}, reads, reduction=summed, flops=5.0)
    types = {"q": "int8", "codes": "uint8", "zeros": "uint8"}
    return dag(shapes, [product], types, constants=("f", "codes", "zeros"))


def _quantities(bits: int, device: Device, rates: Mapping[str, float]) -> Mapping[str, Floats]:
    """Estimate tiles of one row and two vectors."""
    name = "vnni" if "avx_vnni" in device.features else "avx2"
    prefix = "block" if bits == 4 else "block8"
    sketch = sketch_of(_product(bits), f"tile product SSRSRS of {prefix}_8x32_8_{name}", device)
    factors = {"i": (ROWS, 1, 1, 1), "j": (1, 2, 1, 2), "b": (1, BLOCKS)}
    program = program_of(sketch, product={**factors, "read codes": "packed", "unroll": 0})
    profile = replace(device.speeds, multiply_adds=dict.fromkeys(RATES, 2.0) | dict(rates))
    return estimate(gather([program]), replace(device, profile=profile)).quantities


@pytest.mark.parametrize(
    ("bits", "device", "rate", "products"),
    [
        pytest.param(4, HASWELL, "dotuint8", 8, id="pmaddubsw"),
        pytest.param(8, HASWELL, "dotint16", 16, id="pmaddwd"),
        pytest.param(4, ALDER_LAKE, "int8", 8, id="vpdpbusd"),
        pytest.param(8, ALDER_LAKE, "int8", 8, id="vpdpbusd-8"),
    ],
)
def test_a_block_takes_the_cycles_of_its_own_instructions(
    bits: int, device: Device, rate: str, products: int
) -> None:
    """A block has `products` dot products for each of two vectors, and as many for the row's sum."""
    steps = ROWS * COLUMNS // 16 * BLOCKS
    (found,) = _quantities(bits, device, {rate: 0.5})["cycles"]
    assert found == pytest.approx(steps * 3 * products / 0.5, rel=0.1)
    others = dict.fromkeys(set(RATES) - {rate}, 0.1)
    assert _quantities(bits, device, others)["cycles"] == _quantities(bits, device, {})["cycles"]


@pytest.mark.parametrize(("bits", "codes"), [(4, 4), (8, 8)])
def test_a_block_loads_its_scales_once_and_its_codes_step_by_step(bits: int, codes: int) -> None:
    """One scale and eight groups of four bytes of the row; scales, zeros and codes of two vectors."""
    (found,) = _quantities(bits, HASWELL, {})["loads_per_fma"]
    assert found == (1 + 8 + 2 * (1 + 1 + codes)) / 2
