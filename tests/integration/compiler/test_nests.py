"""Loop nests are compiled one by one and kept, and compute what the whole function computes."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from threading import Barrier, Event
from typing import Any

import numpy as np
import pytest
import tvm
import tvm_ffi
from tvm import te, topi
from tvm.tirx import FloatImm, PrimFunc

from compiler.codegen.compilation import compile_functions
from compiler.codegen.nests import NEST, split_nests
from compiler.constants.packing import split_packing
from compiler.lowering.trace import apply_trace, lower
from compiler.measuring import compiled_nests
from compiler.measuring.builder import BuiltKernel, LocalBuilder, doubling_kernel
from compiler.measuring.compiled_nests import CompiledNests, NestCompiler
from compiler.reading.subgraph import read_dag
from compiler.target import detect_device, parse_target
from compiler.workload import to_json
from search.programs.annotate import sample
from search.rules.space import generate
from tests import workloads

DEVICE = detect_device()
TARGET = parse_target(DEVICE.target)
PREFETCH = "call void @llvm.prefetch"
A, B, C = (te.placeholder((128, 128), name=name) for name in "abc")
# The second product reads rows of the first one's result, which would be prefetched if they came from memory.
PRODUCTS = workloads.module([A, B, C, topi.matmul(A, topi.nn.relu(topi.matmul(B, C)))])
DRAWN, PROGRAMS = 8, 6


@cache
def _traces() -> list[str]:
    """Traces of programs with several nests."""
    dag, rng = read_dag(PRODUCTS), np.random.default_rng(0)
    traces = []
    for sketch in generate(dag, DEVICE):
        population = sample(sketch, DRAWN, rng)
        traces += [lower(PRODUCTS, population.program(row), DEVICE) for row in range(len(population))]
    return [trace for trace in traces if len(split_nests(_main(trace)).nests) > 1][:PROGRAMS]


def _main(trace: str) -> PrimFunc:
    scheduled = apply_trace(PRODUCTS, trace)
    parts = split_packing(scheduled)
    return (parts.module if parts else scheduled)["main"]


def _tensors(main: PrimFunc) -> list[Any]:
    rng = np.random.default_rng(1)
    shapes = [[int(extent) for extent in param.ty.shape] for param in main.params]
    return [tvm.runtime.tensor(rng.standard_normal(shape).astype("float32")) for shape in shapes]


def _scaling(scale: float) -> PrimFunc:
    """Return a tiny nest that multiplies by `scale`."""
    function = doubling_kernel()["main"].with_attr("global_symbol", NEST)
    return function.with_body(
        tvm_ffi.structural_map(function.body, (FloatImm, lambda _: FloatImm("float32", scale)))
    )


def test_nests_compute_what_the_function_computes_and_prefetch_as_much() -> None:
    compiler, prefetches = NestCompiler(TARGET), 0
    assert len(_traces()) == PROGRAMS
    for trace in _traces():
        main = _main(trace)
        whole = compile_functions(tvm.IRModule({"main": main}), TARGET, check_arguments=False)
        nests = split_nests(main)
        functions = [nest.function for nest in nests.nests]
        one_by_one = [
            compile_functions(tvm.IRModule({NEST: function}), TARGET, check_arguments=False)
            for function in functions
        ]
        counts = [one.mod.inspect_source("ll").count(PREFETCH) for one in one_by_one]
        prefetches += sum(counts)
        assert sum(counts) == whole.mod.inspect_source("ll").count(PREFETCH)
        tensors = _tensors(main)
        whole["main"](*tensors)
        expected = tensors[-1].numpy().copy()
        tensors[-1].copyfrom(np.full_like(expected, np.nan))
        calls = CompiledNests(nests, tuple(compiler.compile(functions)))
        compiler.call_list["main"](*calls.arguments(tensors))
        np.testing.assert_array_equal(tensors[-1].numpy(), expected)
    assert prefetches


def test_a_tensor_of_one_nest_stays_inside_it() -> None:
    for trace in _traces():
        main = _main(trace)
        nests = split_nests(main)
        count = len(main.params) + len(nests.shapes)
        users = [[nest for nest in nests.nests if index in nest.operands] for index in range(count)]
        assert all(len(found) > 1 for found in users[len(main.params) :])
        allocated = [tensor for nest in nests.nests for tensor in nest.function.body.block.alloc_buffers]
        assert len(allocated) + len(nests.shapes) == len(main.body.block.alloc_buffers)


def test_equal_nests_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = _compiled_modules(monkeypatch)
    builder = LocalBuilder(DEVICE.target)
    first, again = (builder.build(to_json(PRODUCTS), _traces()[0]) for _ in range(2))
    assert isinstance(first, BuiltKernel)
    assert isinstance(again, BuiltKernel)
    assert len(modules) == 1
    assert first.nests is not None
    assert again.nests is not None
    assert _are_same(first.nests.functions, again.nests.functions)
    tensors = _tensors(_main(_traces()[0]))
    given, (one, other) = (
        set(_addresses(tensors)),
        (_addresses(each.arguments(tensors)) for each in (first, again)),
    )
    assert not (set(one) - given) & (set(other) - given)


def test_the_nests_used_longest_ago_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    modules = _compiled_modules(monkeypatch)
    monkeypatch.setattr(compiled_nests, "MAX_KEPT", 2)
    compiler = NestCompiler(TARGET)
    for scale, compiled in [(2.0, 1), (3.0, 2), (2.0, 2), (4.0, 3), (2.0, 3), (3.0, 4)]:
        (scaled,) = compiler.compile([_scaling(scale)])
        tensors = [tvm.runtime.tensor(np.ones(64, "float32")) for _ in range(2)]
        scaled(*tensors)
        assert (len(modules), tensors[1].numpy()[0]) == (compiled, scale)


def test_threads_wait_for_each_others_nests() -> None:
    compiler, ready = NestCompiler(TARGET), Barrier(8)

    def compile_all(_: int) -> list[Any]:
        ready.wait()
        return compiler.compile([_scaling(scale) for scale in (2.0, 3.0, 4.0)])

    with ThreadPoolExecutor(8) as threads:
        first, *others = threads.map(compile_all, range(8))
    assert all(_are_same(first, found) for found in others)


def test_a_nest_outlives_the_failure_of_another_in_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    compiler, begun, goes_on = NestCompiler(TARGET), Event(), Event()

    def fail(module: tvm.IRModule, target: tvm.target.Target, check_arguments: bool) -> Any:
        if len(module.functions) == 1:
            return compile_functions(module, target, check_arguments)
        begun.set()
        goes_on.wait()
        raise RuntimeError("the other one")

    monkeypatch.setattr(compiled_nests, "compile_functions", fail)
    with ThreadPoolExecutor(2) as threads:
        failing = threads.submit(compiler.compile, [_scaling(2.0), _scaling(3.0)])
        begun.wait()
        waiting = threads.submit(compiler.compile, [_scaling(2.0)])
        goes_on.set()
        assert str(failing.exception()) == "the other one"
        assert len(waiting.result()) == 1
    assert not compiler._kept


def test_an_error_in_a_nest_is_the_candidates_error() -> None:
    compiler = NestCompiler(TARGET)
    library = tvm.compile(doubling_kernel(), target=TARGET)  # it checks its arguments
    nests = split_nests(doubling_kernel()["main"])
    calls = CompiledNests(nests, (library["main"],))
    wrong = [tvm.runtime.empty((63,)), tvm.runtime.empty((64,))]
    with pytest.raises(Exception, match="a loop nest failed"):
        compiler.call_list["main"](*calls.arguments(wrong))


def _compiled_modules(monkeypatch: pytest.MonkeyPatch) -> list[tvm.IRModule]:
    """Return a list that will hold each module that is compiled."""
    modules: list[tvm.IRModule] = []

    def compile_module(module: tvm.IRModule, target: tvm.target.Target, check_arguments: bool) -> Any:
        modules.append(module)
        return compile_functions(module, target, check_arguments)

    monkeypatch.setattr(compiled_nests, "compile_functions", compile_module)
    return modules


def _are_same(first: Sequence[Any], second: Sequence[Any]) -> bool:
    return all(one.same_as(other) for one, other in zip(first, second, strict=True))


def _addresses(arguments: Sequence[Any]) -> set[int]:
    return {argument.data_ptr() for argument in arguments if isinstance(argument, tvm.runtime.Tensor)}
