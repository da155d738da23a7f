"""CPUs that compute in float16 multiply halves without converting them."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tvm

from compiler.codegen import half_products
from search.sketches.half_products import BLOCK_TERMS
from tests.register_tiles import compile_tile, register_tile

COLUMNS = 8
CORES = {"fmlal": "neoverse-n2", "blocks": "cortex-a76", "converted": "cortex-a72"}
NATIVE = tvm.target.Target("llvm")


def _assembly(core: str, depth: int, inner: int = 0) -> str:
    target = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": CORES[core]})
    library = compile_tile(register_tile(4, COLUMNS, depth, "float16", inner), target)
    return str(library.mod.inspect_source("s"))


def test_long_products_add_in_float32() -> None:
    assembly = _assembly("fmlal", 64)
    for instruction in ("fmlal", "fmlal2"):
        for lane in (0, 7):
            assert re.search(rf"\b{instruction}\s+v\d+\.4s, v\d+\.4h, v\d+\.h\[{lane}\]", assembly)
    assert "fcvt" not in assembly


@pytest.mark.parametrize(
    ("depth", "inner"),
    [(64, 0), (48, 12), (16, 0), (8, 0)],
    ids=["parts", "inner loop", "a block", "a short one"],
)
def test_other_cores_add_blocks_in_halves(depth: int, inner: int) -> None:
    assembly = _assembly("blocks", depth, inner)
    assert re.search(r"\bfmla\s+v\d+\.8h", assembly)
    # The sums of each block are converted, the operands aren't.
    assert len(re.findall(r"\bfcvtl2?\b", assembly)) <= 8


def test_loops_without_enough_terms_convert_their_operands() -> None:
    for core, depth in (("blocks", 34), ("converted", 64)):
        assembly = _assembly(core, depth)
        assert "fcvtl" in assembly
        assert not re.search(r"\.8h, v\d+\.8h", assembly)


def test_blocks_have_the_sums_of_bounded_roundings(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are computed on this machine. Sums of 4,096 terms in halves would be off 30 times as much."""
    monkeypatch.setattr(half_products, "features_of", lambda _: frozenset({"asimdhp"}))
    rng = np.random.default_rng(0)
    for depth, inner in ((4096, 0), (4096, 8), (48, 12), (34, 0)):
        data, weight = (
            rng.standard_normal(shape).astype("float16") for shape in ((4, depth), (depth, COLUMNS))
        )
        result = tvm.runtime.tensor(np.zeros((4, COLUMNS), "float32"))
        built = compile_tile(register_tile(4, COLUMNS, depth, "float16", inner), NATIVE)
        built["main"](tvm.runtime.tensor(data), tvm.runtime.tensor(weight), result)
        exact = data.astype("float64") @ weight.astype("float64")
        error = np.sqrt(np.mean((result.numpy() - exact) ** 2) / depth)
        assert error < np.sqrt(BLOCK_TERMS / 2) * 2**-11, (depth, inner)
        assert (error > 2**-14) == (depth != 34), "34 terms have no block"
