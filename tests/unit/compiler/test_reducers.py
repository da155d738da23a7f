"""Maxima and minima that start with infinity can be split like other reductions."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tvm.s_tir import Schedule
from tvm.script import tirx as T  # noqa: N812 - TVMScript needs the name

from compiler.reading.subgraph import read_dag
from compiler.workload import normalise


@T.prim_func(s_tir=True)
def largest(a: T.Buffer((16, 64), "float32"), b: T.Buffer((16,), "float32")):
    for i, k in T.grid(16, 64):
        with T.sblock("extreme"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                b[vi] = T.float32("-inf")
            b[vi] = T.max(b[vi], a[vi, vk])


@T.prim_func(s_tir=True)
def least(a: T.Buffer((16, 64), "float16"), b: T.Buffer((16,), "float16")):
    for i, k in T.grid(16, 64):
        with T.sblock("extreme"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                b[vi] = T.float16("inf")
            b[vi] = T.min(b[vi], a[vi, vk])


@T.prim_func(s_tir=True)
def largest_positive(a: T.Buffer((16, 64), "float32"), b: T.Buffer((16,), "float32")):
    for i, k in T.grid(16, 64):
        with T.sblock("extreme"):
            vi, vk = T.axis.remap("SR", [i, k])
            with T.init():
                b[vi] = T.float32(0)
            b[vi] = T.max(b[vi], a[vi, vk])


@pytest.mark.parametrize("function", [largest, least])
def test_rfactor_splits_extremes_that_begin_with_infinity(function) -> None:
    schedule = Schedule(normalise(function))
    block = schedule.get_sblock("extreme")
    outer, _ = schedule.split(schedule.get_loops(block)[1], [8, 8])
    schedule.rfactor(outer, 0)
    assert schedule.mod.script().count("inf") == 2


@pytest.mark.parametrize(("function", "name"), [(largest, "max"), (least, "min")])
def test_the_search_knows_extremes_that_start_with_infinity(function, name: str) -> None:
    (node,) = read_dag(normalise(function)).nodes
    assert node.reducer == name


def test_an_extreme_that_starts_with_a_number_is_no_reducer() -> None:
    (node,) = read_dag(normalise(largest_positive)).nodes
    assert node.reducer == "other"


def test_a_process_ends_well_that_registered_them() -> None:
    program = "import compiler.workload"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
