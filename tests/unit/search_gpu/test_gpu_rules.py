from __future__ import annotations

from dataclasses import replace

import pytest

from core.device import Device
from search.dag import Dag
from search.rules.derive import Rule, when
from search.rules.space import generate
from search.sketches.stage import StageKind
from search.stages.gpu import ThreadKernel
from tests.devices import DEVICE, GPU
from tests.unit.search import dags
from tests.unit.search.builders import dag, node


def keys(graph: Dag) -> list[str]:
    return [sketch.key for sketch in generate(graph, GPU)]


def test_the_kind_of_device_decides_which_rules_apply() -> None:
    assert "SSSRRSRS" in keys(dags.matmul())[0]
    assert all("SSSRRSRS" not in sketch.key for sketch in generate(dags.matmul(), DEVICE))
    assert all(sketch.gpu is None for sketch in generate(dags.matmul(), DEVICE))


def test_a_tile_fetches_padded_operands_and_computes_its_elementwise_consumer() -> None:
    tile = "tile conv SSSRRSRS, relu at 3, shared pad weight"
    assert keys(dags.conv2d()) == [f"inline pad; {tile}; inline add; fuse relu"]


def test_a_chain_over_rows_is_one_kernel() -> None:
    chain = "across max in divide; inline exp; across sum in divide; rows divide"
    assert keys(dags.softmax(16, 100))[0] == chain


def test_a_reduction_no_longer_than_a_warp_stays_with_one_thread() -> None:
    assert keys(dags.softmax(16, 32)) == ["threads max; inline exp; threads sum; threads divide"]


def test_a_reduction_along_columns_is_not_fused_into_row_kernels() -> None:
    graph = dag(
        {"data": (64, 48)},
        [
            node("sum", {"j": 48}, ["data[k, j]"], reduction={"k": 64}, flops=1.0),
            node("next", {"i": 64, "j": 48}, ["data[i, j]", "sum[j]", "sum[i]"], flops=1.0),
        ],
    )
    assert not [key for key in keys(graph) if "across" in key]


def test_rows_may_be_any_axes_of_the_reader() -> None:
    graph = dag(
        {"data": (64, 48)},
        [
            node("sum", {"j": 48}, ["data[k, j]"], reduction={"k": 64}, flops=1.0),
            node("next", {"i": 64, "j": 48}, ["data[i, j]", "sum[j]"], flops=1.0),
        ],
    )
    (rows,) = (s for s in generate(graph, GPU)[0].stages if s.kind is StageKind.ROWS)
    assert rows.rows == (1,)


def test_a_tiled_reader_does_not_take_a_reduction_into_its_loops() -> None:
    assert not [key for key in keys(dags.DAGS["attention"]()) if "in attention" in key]


def test_an_epilogue_that_reads_a_later_kernel_is_not_fused() -> None:
    shape = {"i": 64, "j": 64}
    graph = dag(
        {"a": (64, 64), "b": (64, 64)},
        [
            node("first", shape, ["a[i, k]", "b[k, j]"], reduction={"k": 64}, flops=2.0),
            node("second", shape, ["b[i, k]", "a[k, j]"], reduction={"k": 64}, flops=2.0),
            node("sum", shape, ["first[i, j]", "second[i, j]"], flops=1.0),
        ],
    )
    (key,) = keys(graph)
    assert "tile first SSSRRSRS in a write cache, copy at 3" in key
    assert "tile second SSSRRSRS, sum at 3" in key


def test_the_operand_of_a_constant_matrix_is_computed_by_its_reader() -> None:
    graph = dag(
        {"data": (8, 8, 100), "matrix": (4, 4)},
        [
            node("tile", {"a": 4, "b": 4, "p": 100}, ["data[a + p, b, p]"]),
            node(
                "packed",
                {"x": 4, "y": 4, "p": 100},
                ["tile[ra, rb, p]", "matrix[ra, x]", "matrix[rb, y]"],
                reduction={"ra": 4, "rb": 4},
                flops=2.0,
                constant_axes=("x", "y", "ra", "rb"),
            ),
        ],
    )
    assert keys(graph) == ["local tile in packed; threads packed"]


def test_a_callers_rules_come_first() -> None:
    leave = Rule(
        "Leave",
        lambda state: when(True),
        lambda state: [state.put(ThreadKernel(state.current.name))],
    )
    (sketch,) = generate(dags.matmul(), GPU, (leave,))
    assert sketch.key == "threads matmul"


def test_a_gpu_survives_json_and_is_part_of_the_class() -> None:
    assert Device.from_json(GPU.to_json()) == GPU
    assert (GPU.kind, DEVICE.kind) == ("gpu", "cpu")
    assert Device.from_json(GPU.to_json().replace('"capability": 80', '"capability": 90')).key != GPU.key


def test_cpus_are_described_as_before_there_were_gpus() -> None:
    assert "gpu" not in DEVICE.to_json()


def test_an_invalid_gpu_fingerprint_is_refused() -> None:
    with pytest.raises(ValueError, match="not a device fingerprint"):
        Device.from_json(GPU.to_json().replace("capability", "ability"))
    with pytest.raises(ValueError, match="a GPU's warp_size must be positive, not 0"):
        Device.from_json(GPU.to_json().replace('"warp_size": 32', '"warp_size": 0'))


def test_an_attention_is_tried_in_one_kernel_if_its_rows_fit_shared_memory() -> None:
    assert GPU.gpu is not None
    fused, *others = keys(dags.joined_attention())
    assert fused == (
        "attended scores; attended scaled; attended max; inline exp; attended sum; attended weights; "
        "attended attention; attention joined"
    )
    assert others == [key for key in others if key.startswith("tile scores")]
    # Scores and weights of a query: 8 bytes for each key.
    short = replace(GPU, gpu=replace(GPU.gpu, dynamic_shared_bytes=8 * 32))
    shorter = replace(GPU, gpu=replace(GPU.gpu, dynamic_shared_bytes=8 * 32 - 1))
    found = [[sketch.key for sketch in generate(dags.joined_attention(), one)] for one in (short, shorter)]
    assert found == [[fused, *others], others]


def test_tensor_cores_compute_a_whole_attention_if_its_products_are_large_enough() -> None:
    assert GPU.gpu is not None
    on_lanes, on_tensor_cores, *_ = keys(dags.attention_of_halves())
    assert on_lanes.endswith("; attention joined")
    assert on_tensor_cores == on_lanes.replace("attention joined", "attention on tensor cores joined")
    # Scores and weights of 16 queries: 6 bytes for each key.
    for shared_bytes, count in ((6 * 32 * 16, 1), (6 * 32 * 16 - 1, 0)):
        small = replace(GPU, gpu=replace(GPU.gpu, dynamic_shared_bytes=shared_bytes))
        found = generate(dags.attention_of_halves(), small)
        assert sum("attention on tensor cores" in sketch.key for sketch in found) == count
    narrow, without = dags.attention_of_halves(size=8), replace(GPU.gpu, capability=69)
    assert not [key for key in keys(narrow) if "attention on tensor cores" in key]
    found = generate(dags.attention_of_halves(), replace(GPU, gpu=without))
    assert not [sketch for sketch in found if "attention on tensor cores" in sketch.key]


ONLINE = "attention with an online softmax"


def test_an_attention_in_tf32_is_one_kernel_only_with_an_online_softmax() -> None:
    assert GPU.gpu is not None
    last = [key.rpartition("; ")[2] for key in keys(dags.attention_in_tf32()) if "attended" in key]
    assert last == [f"{ONLINE} joined"]
    assert not [key for key in keys(dags.attention_in_tf32(size=8)) if "attended" in key]
    turing = replace(GPU, gpu=replace(GPU.gpu, capability=75))
    assert not [one for one in generate(dags.attention_in_tf32(), turing) if ONLINE in one.key]


def test_an_attention_in_float32_has_an_online_softmax_on_any_gpu() -> None:
    assert GPU.gpu is not None
    volta = replace(GPU, gpu=replace(GPU.gpu, capability=70))
    for length, kernels in ((32, ["attention", ONLINE]), (16384, [ONLINE])):
        found = [sketch.key for sketch in generate(dags.joined_attention(length=length, size=16), volta)]
        last = [key.rpartition("; ")[2] for key in found if "attended" in key]
        assert last == [f"{kernel} joined" for kernel in kernels]


def test_an_online_softmax_takes_any_number_of_keys() -> None:
    """Also where no row of scores fits shared memory: 16 queries and keys take 2304 bytes."""
    assert GPU.gpu is not None
    on_lanes, *_, online = (key for key in keys(dags.attention_of_halves()) if "attended" in key)
    assert online == on_lanes.replace("attention joined", f"{ONLINE} joined")
    many = keys(dags.attention_of_halves(length=16384))
    assert [key.rpartition("; ")[2] for key in many if "attended" in key] == [f"{ONLINE} joined"]
    for shared_bytes, count in ((2304, 1), (2303, 0)):
        small = replace(GPU, gpu=replace(GPU.gpu, dynamic_shared_bytes=shared_bytes))
        found = generate(dags.attention_of_halves(length=16384), small)
        assert sum(ONLINE in sketch.key for sketch in found) == count


def test_an_online_softmax_needs_tensor_cores_and_registers() -> None:
    assert GPU.gpu is not None
    volta = replace(GPU, gpu=replace(GPU.gpu, capability=70))
    in_bfloat16 = dags.attention_of_halves(dtype="bfloat16")
    assert [key for key in keys(in_bfloat16) if "attended" in key and ONLINE in key]
    assert not [sketch for sketch in generate(in_bfloat16, volta) if ONLINE in sketch.key]
    # A lane has 8 registers for each 16 columns of the results.
    assert [key for key in keys(dags.attention_of_halves(size=368)) if ONLINE in key]
    assert not [key for key in keys(dags.attention_of_halves(size=384)) if ONLINE in key]


def test_only_a_softmax_is_computed_online() -> None:
    graph = dags.attention_of_halves()
    smallest = tuple(replace(one, reducer="min") if one.name == "max" else one for one in graph.nodes)
    assert not [key for key in keys(replace(graph, nodes=smallest)) if ONLINE in key]
