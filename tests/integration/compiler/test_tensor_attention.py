"""Attention in one GPU kernel, with both products on tensor cores."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from compiler.codegen.nvcc import compile_cubin
from compiler.reading.subgraph import read_dag
from search.rules.space import generate
from search.sketches.sketch import Sketch
from search.sketches.stage import StageKind
from tests.choices import choose
from tests.cuda_emulator.emulator import compile_batch, host_code
from tests.cuda_emulator.toolchain import find_nvdisasm, instructions
from tests.devices import GPU
from tests.gpu_programs import TARGET, Candidate, compiled, failures
from tests.imported_cases import AttentionOfHalves

pytestmark = pytest.mark.slow


def _sketch(case: AttentionOfHalves) -> Sketch:
    found = generate(read_dag(case.module()), GPU)
    (sketch,) = (sketch for sketch in found if sketch.of_kind(StageKind.TENSOR_ATTENTION))
    return sketch


def _compiled(case: AttentionOfHalves, options: Mapping[str, int]) -> Candidate:
    found = compiled(case, choose(_sketch(case), options))
    assert isinstance(found, Candidate), str(found)
    return found


def _tile(
    warps: tuple[int, int], fragments: tuple[int, int, int], stages: int, unroll: int
) -> dict[str, int]:
    sizes = dict(zip(("warps i", "warps j"), warps, strict=True))
    counts = dict(zip(("fragments i", "fragments j", "fragments k"), fragments, strict=True))
    return {**sizes, **counts, "stages": stages, "unroll": unroll}


@pytest.mark.parametrize(
    ("shape", "tiles"),
    [
        pytest.param(
            (2, 17, 33, 40, True),
            [_tile((1, 2), (2, 1, 1), 2, 16), _tile((2, 4), (1, 1, 4), 1, 64)],
            id="odd",
            marks=pytest.mark.slow_lane(seconds=4),
        ),
        pytest.param(
            (2, 32, 64, 32, False),
            [_tile((2, 1), (1, 2, 2), 2, 0)],
            id="whole tiles",
            marks=pytest.mark.slow_lane,
        ),
    ],
)
def test_the_kernel_agrees_with_the_attention(shape: tuple[int, ...], tiles: list[dict[str, int]]) -> None:
    """Queries, keys and columns that tiles divide and don't, with fetches in one step and in a pipeline."""
    case = AttentionOfHalves("attention", shape, dtype="float16")
    wrong = failures([_compiled(case, tile) for tile in tiles])
    assert not wrong, "\n\n".join(map(str, wrong))


@pytest.mark.parametrize("masked", [slice(20, None), slice(None)], ids=["some keys", "all keys"])
def test_nan_stays_in_its_query_and_infinite_masks_hide_keys(masked: slice, tmp_path: Path) -> None:
    case = AttentionOfHalves("attention", (1, 18, 33, 16, True), dtype="float16")
    found = _compiled(case, _tile((1, 1), (2, 1, 1), 1, 0))
    query, key, mask, value, result = case.arguments()
    mask[..., masked] = -np.inf
    query[0, 0, 3, 0] = np.nan
    with np.errstate(invalid="ignore"):
        expected = case.reference([query, key, mask, value])
    (program,) = compile_batch([(found.source, host_code(found.module, TARGET))], tmp_path)
    program.run([query, key, mask, value, result], 1)
    np.testing.assert_allclose(result.astype(np.float64), expected, atol=2e-3, equal_nan=True)
    rows = np.isnan(result).any(axis=(0, 2, 3))
    assert list(np.flatnonzero(rows)) == (list(range(18)) if masked == slice(None) else [3])


@pytest.mark.skipif(find_nvdisasm() is None, reason="nvidia-cuda-nvdisasm isn't installed")
def test_both_products_are_instructions_of_tensor_cores(tmp_path: Path) -> None:
    case = AttentionOfHalves("attention", (12, 64, 64, 64, True), dtype="float16")
    found = _compiled(case, _tile((1, 4), (1, 1, 2), 2, 64))
    assert "mma.sync" in found.source
    cubin, resources = compile_cubin(found.source, "sm_90")
    assert resources is not None
    assert resources.spilled_bytes == 0
    (tmp_path / "cubin").write_bytes(cubin)
    counts = instructions(tmp_path / "cubin")
    # Fragments, products, asynchronous copies, and lanes that exchange maxima and sums; no local memory.
    assert {"LDSM", "HMMA", "LDGSTS", "SHFL"} <= set(counts)
    assert not {"STL", "LDL"} & set(counts)
