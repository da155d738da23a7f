"""A candidate gets as many repeats as its ranking needs, on a clock that only its calls advance."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm

from compiler.measuring import timing
from compiler.measuring.microkernels import LINE_WORDS, rewriting_kernel
from compiler.measuring.timing import (
    MAX_CLOSE_REPEATS,
    MAX_LAUNCHES,
    MAX_REPEATS,
    MIN_LAUNCHES,
    MIN_REPEATS,
    CallTimer,
    GraphTimer,
    TimedKernel,
    WorkingSet,
)

BEST_S = 2e-3


@dataclass
class Machine:
    """The calls of a candidate take the times of `secs` in order, then always the last one."""

    secs: list[float]
    constants: tuple[int, ...] = ()
    now: float = 0.0
    timed: list[int] = field(default_factory=list)
    calls: int = 0

    def call(self, *_: object) -> None:
        self.calls += 1
        self.now += self.secs.pop(0) if len(self.secs) > 1 else self.secs[0]

    def time_evaluator(
        self, _name: str, _device: object, number: int, repeat: int, min_repeat_ms: int, f_preproc: str
    ) -> Any:
        """Return a timer that warms up first, like TVM's."""
        assert (number, f_preproc) == (1, timing.PREPARE_CACHES)

        def evaluate(*_: object) -> Any:
            self.timed.append(repeat)
            self.call()
            return SimpleNamespace(results=[self._mean(min_repeat_ms / 1e3) for _ in range(repeat)])

        return evaluate

    def measure(self, best_s: float | None) -> tuple[float, ...]:
        device, arguments = SimpleNamespace(sync=lambda: None), [tvm.runtime.empty((1,))] * 2
        prepare = timing.prepares_caches(2, self.constants, lambda *_: None)
        timer = CallTimer(SimpleNamespace(mod=self), device, arguments, prepare, bool(self.constants))
        kernel = TimedKernel(self.call, device, arguments, timer)
        return kernel.timed(kernel.call(), best_s)

    def _mean(self, at_least_s: float) -> float:
        """Return the mean seconds of calls that take at least this long together."""
        before, calls = self.now, self.calls
        self.call()
        while self.now - before < at_least_s:
            self.call()
        return (self.now - before) / (self.calls - calls)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    def make(*secs: float, constants: tuple[int, ...] = ()) -> Machine:
        made = Machine(list(secs), constants)
        monkeypatch.setattr(time, "perf_counter", lambda: made.now)
        return made

    return make


Make = Callable[..., Machine]


@pytest.mark.parametrize(
    ("secs", "repeats"), [(1.0, MIN_REPEATS), (4.5e-3, 4), (2.4e-3, 8), (1e-5, MAX_REPEATS)]
)
def test_without_a_best_latency_every_kernel_is_timed_for_as_long(
    machine: Make, secs: float, repeats: int
) -> None:
    assert len(machine(secs).measure(None)) == repeats


def test_a_clearly_slow_kernel_is_called_once_more_and_no_further(machine: Make) -> None:
    slow = machine(3 * BEST_S)
    assert slow.measure(BEST_S) == pytest.approx([3 * BEST_S])
    assert slow.now == pytest.approx(2 * 3 * BEST_S)
    assert slow.timed == []


@pytest.mark.parametrize(("share", "repeats"), [(1.4, 1), (1.2, MIN_REPEATS)])
def test_a_long_kernel_counts_as_slow_sooner(machine: Make, share: float, repeats: int) -> None:
    assert machine(share * 0.1).measure(0.1) == pytest.approx([share * 0.1] * repeats)


def test_a_kernel_in_between_is_timed_as_without_a_best_latency(machine: Make) -> None:
    assert len(machine(1.5 * BEST_S).measure(BEST_S)) == len(machine(1.5 * BEST_S).measure(None))


@pytest.mark.parametrize(
    ("share", "timing_s"),
    [
        (0.5, timing.CLOSE_TIMING_S),
        (1.02, timing.CLOSE_TIMING_S),
        (1.04, timing.CLOSE_TIMING_S / 2),
        (1.09, timing.CLOSE_TIMING_S / 2),
    ],
)
def test_a_kernel_that_may_be_the_best_is_timed_longer(machine: Make, share: float, timing_s: float) -> None:
    secs = (1.0, share * BEST_S, share * BEST_S)
    long = machine(*secs).measure(BEST_S)
    assert sum(long) > 2 * sum(machine(*secs).measure(None))
    assert sum(long) == pytest.approx(timing_s, abs=2 * share * BEST_S)


def test_a_short_kernel_is_called_for_a_millisecond_in_every_repeat(machine: Make) -> None:
    short = machine(1e-5)
    assert short.measure(1e-5) == pytest.approx([1e-5] * MAX_CLOSE_REPEATS)
    assert short.now == pytest.approx(timing.CLOSE_TIMING_S, rel=0.1)


def test_with_constants_to_flush_a_repeat_is_one_call(machine: Make) -> None:
    short = machine(1e-5, constants=(1,))
    assert len(short.measure(1e-5)) == MAX_CLOSE_REPEATS
    assert short.calls < 1.1 * MAX_CLOSE_REPEATS


def test_frequent_interruptions_take_no_more_time(machine: Make) -> None:
    often = machine(*[1e-4] * 3, *[1e-4, 1e-4, 1e-2] * 40, 1e-4)
    assert sum(often.measure(1e-4)) < 3 * timing.CLOSE_TIMING_S


@pytest.mark.parametrize("hiccups", [(1.0,), (BEST_S, 1.0)])
def test_a_single_interrupted_call_does_not_affect_the_latency(
    machine: Make, hiccups: tuple[float, ...]
) -> None:
    assert len(machine(*hiccups, BEST_S).measure(BEST_S)) >= MIN_REPEATS


def test_a_kernel_that_is_slow_only_when_cold_is_not_slow(machine: Make) -> None:
    cold = [5e-4, 5e-4]
    assert len(machine(*cold, 1e-5).measure(1e-5)) == MAX_CLOSE_REPEATS


def test_a_short_kernel_that_is_slow_when_warm_is_timed_briefly(machine: Make) -> None:
    assert machine(8e-4, 8e-4, 5e-5).measure(1e-5) == pytest.approx([5e-5] * MIN_REPEATS)


def test_the_first_call_is_not_part_of_the_latency(machine: Make) -> None:
    assert max(machine(1.0, 2 * BEST_S, 2.0, BEST_S).measure(BEST_S)) == pytest.approx(BEST_S)


@dataclass
class Graph:
    """A stand-in for a CUDA graph on the clock of a `Machine`."""

    device: object
    calls: Callable[[], object]

    def launch_s(self) -> float:
        self.calls()
        return 1.0

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("model_bytes", "first_s", "launches", "copies"),
    [
        (0, 1e-6, 48, 48),  # three times the cache, where the model is unknown
        (1 << 20, 1e-6, MIN_LAUNCHES, 1),
        (20 << 20, 1e-6, 20, 20),
        (20 << 20, 1e-3, 4, 4),  # a slow kernel is launched less often
        (20 << 20, 1.0, 1, 1),
    ],
)
def test_launches_in_a_graph_rotate_through_copies_that_fill_the_working_set(
    monkeypatch: pytest.MonkeyPatch, model_bytes: int, first_s: float, launches: int, copies: int
) -> None:
    monkeypatch.setattr(timing, "CudaGraph", Graph)
    seen: list[tuple[Any, ...]] = []
    data, weight = (tvm.runtime.tensor(np.full(1 << 18, value, "float32")) for value in (1, 2))
    working_set = WorkingSet(tvm.cpu(), 16 << 20)
    working_set.resize(model_bytes)
    timer = GraphTimer(lambda *given: seen.append(given), tvm.cpu(), [data, weight], (1,), working_set)
    timer.prepare(first_s)
    seen.clear()
    assert timer.repeat(1) == (1.0 / launches,)
    assert len(seen) == launches
    assert {each[0].data_ptr() for each in seen} == {data.data_ptr()}
    assert len({each[1].data_ptr() for each in seen}) == copies
    assert all(np.all(each[1].numpy() == 2) for each in seen)


def test_small_constants_get_no_more_copies_than_a_graph_has_launches() -> None:
    copies = WorkingSet(tvm.cpu(), 16 << 20).copies([tvm.runtime.empty((1,)), tvm.runtime.empty((3,))])
    assert len(copies) == MAX_LAUNCHES
    assert len({tensor.data_ptr() for copy in copies for tensor in copy}) == 2 * MAX_LAUNCHES


def test_without_constants_nothing_is_copied() -> None:
    assert WorkingSet(tvm.cpu(), 16 << 20).copies([]) == [[]]


def test_threads_write_activations_again_in_order_and_keep_the_values() -> None:
    kernel = tvm.compile(rewriting_kernel(), target=tvm.target.Target({"kind": "llvm"}))["main"]
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(1000).astype("float32"), rng.integers(0, 99, 77).astype("int8")]
    arrays += [rng.standard_normal(64).astype("float32"), np.full((3, 50), np.nan, "float16"), np.ones(1)]
    tensors = [tvm.runtime.tensor(array) for array in arrays]
    written: list[tuple[int, int]] = []

    def rewrite(words: Any, zero: int) -> None:
        written.append((words.data_ptr(), int(words.shape[0])))
        kernel(words, zero)

    timing.prepares_caches(len(tensors), [2], rewrite)(*tensors)
    sizes = [array.nbytes // 4 for array in arrays]
    assert written == [(tensors[i].data_ptr(), sizes[i]) for i in (4, 3, 1, 0)]
    for tensor, array in zip(tensors, arrays, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("length", [0, 15, 16, 1000])
def test_every_whole_line_is_written(length: int) -> None:
    kernel = tvm.compile(rewriting_kernel(), target=tvm.target.Target({"kind": "llvm"}))["main"]
    before = np.arange(length, dtype="int32")
    words = tvm.runtime.tensor(before)
    kernel(words, 1)
    whole = length // LINE_WORDS * LINE_WORDS
    np.testing.assert_array_equal(words.numpy(), np.concatenate([before[:whole] ^ 1, before[whole:]]))
