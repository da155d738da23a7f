"""Count wrong outputs on the GPU that computed them, so that only the counts are copied to the CPU.

The CPU computes the expected outputs once, and the least and the greatest accepted value of each. The kernel
here compares integers that are ordered like the values (`expected.keys_of`), because a GPU's instructions for
floats may replace subnormal numbers by zero. Before a kernel is used, it must count like the CPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm.tirx.script import builder as T  # noqa: N812 - as in TVM

from compiler.codegen.compilation import pass_context
from compiler.codegen.pipeline import PIPELINE
from compiler.measuring.expected import Expected, keys_of
from compiler.measuring.microkernels import build_module, gpu_threads
from compiler.measuring.random_inputs import limits
from compiler.measuring.rounding import Rounding, is_float

# The grid of the kernel. Each thread counts for itself.
BLOCKS, THREADS = 64, 128
COUNTERS = BLOCKS * THREADS
# The kernel's check has values for two turns of all threads and a part of one. Each is moved by one of these
# multiples of its allowed difference.
CHECKED = 2 * COUNTERS + 37
MOVED = (0.0, 0.5, -0.5, 2.0, -2.0, np.nan, np.inf, -np.inf, 0.0)


@dataclass(frozen=True)
class Accepted:
    """One output's accepted values on a GPU, as keys (`expected.keys_of`)."""

    dtype: str
    least: Any
    greatest: Any


class GpuComparison:
    """Compares tensors on a GPU with accepted values there."""

    def __init__(self, target: tvm.target.Target, device: Any) -> None:
        self._target = target
        self._device = device
        self._kernels: dict[str, Any] = {}

    def upload(self, expected: Expected) -> Accepted:
        ends = (tvm.runtime.tensor(np.ascontiguousarray(keys), self._device) for keys in expected.accepted())
        return Accepted(str(expected.values.dtype), *ends)

    def count_far(self, output: Any, accepted: Accepted) -> int:
        """Return how many values of an output aren't accepted.

        Raises RuntimeError if the kernel miscounts.
        """
        if accepted.dtype not in self._kernels:
            kernel = self._compile(accepted.dtype)
            self._check(kernel, accepted.dtype)
            self._kernels[accepted.dtype] = kernel
        return int(self._counts(self._kernels[accepted.dtype], output, accepted).sum())

    def _counts(self, kernel: Any, output: Any, accepted: Accepted) -> NDArray[np.int32]:
        counts = tvm.runtime.empty((COUNTERS,), "int32", self._device)
        size = int(np.prod(output.shape, dtype=np.int64))
        kernel(size, output, accepted.least, accepted.greatest, counts)
        return np.asarray(counts.numpy())

    def _compile(self, dtype: str) -> Any:
        body = partial(count_far, dtype)
        # Outputs have other shapes and types than the kernel's integers.
        with self._target, pass_context(self._target, **{"tirx.disable_assert": True}):
            return tvm.compile(build_module(body), target=self._target, tir_pipeline=PIPELINE)["main"]

    def _check(self, kernel: Any, dtype: str) -> None:
        """Compare the kernel's counts with the CPU's."""
        expected, found = checked_values(dtype)
        far = np.resize(expected.far(found), (-(-CHECKED // COUNTERS), COUNTERS))
        far.reshape(-1)[CHECKED:] = False
        counts = self._counts(kernel, tvm.runtime.tensor(found, self._device), self.upload(expected))
        if not np.array_equal(counts, far.sum(axis=0)):
            raise RuntimeError(
                f"the GPU counts {counts.sum()} wrong values of {dtype} where the CPU counts {far.sum()}: "
                "run nvidia-smi to look for memory errors, and restart the worker"
            )


def checked_values(dtype: str) -> tuple[Expected, NDArray[Any]]:
    """Return expected values, zeros, infinities and NaN among them, and values near to and far from them."""
    rng = np.random.default_rng(0)
    if not is_float(dtype):
        low, high = (0, 1) if dtype == "bool" else (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
        values = rng.choice(np.array([low, 0, 1, high], dtype), CHECKED)
        return Expected.of(values, None, Rounding()), np.roll(values, 1)
    values = rng.standard_normal(CHECKED).astype(dtype)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, float(limits(dtype).smallest_subnormal)]
    values[:: len(MOVED) + 1] = rng.choice(np.array(special).astype(dtype), len(values[:: len(MOVED) + 1]))
    finite = np.where(np.isfinite(values), values, 0).astype(dtype)
    bounds = Expected.of(finite, None, Rounding(relative=16 * float(limits(dtype).eps))).bounds
    assert bounds is not None, "floats are rounded"
    bounds = np.where(np.isfinite(values), bounds, 0).astype(bounds.dtype)
    with np.errstate(all="ignore"):
        moved = np.resize(np.array(MOVED), CHECKED) * bounds.astype(np.float64)
        found = (values.astype(np.float64) + np.where(np.isnan(moved), np.nan, moved)).astype(dtype)
    return Expected(values, bounds, 0), found


def count_far(dtype: str) -> None:
    """Count the values of a thread whose keys lie outside of their interval.

    for i in range(number, count, COUNTERS): far += not least[i] <= key(outputs[i]) <= greatest[i]
    """
    bits = 8 * np.dtype(dtype).itemsize
    stored = f"int{bits}"
    ends = np.iinfo(stored)
    count = T.arg("count", T.int64())
    outputs, least, greatest = (
        T.arg(name, T.buffer((count,), stored)) for name in ("outputs", "least", "greatest")
    )
    counts = T.arg("counts", T.buffer((COUNTERS,), "int32"))
    with gpu_threads(BLOCKS, THREADS) as number:
        far = T.alloc_buffer((1,), "int32", scope="local")
        T.buffer_store(far, 0, [0])
        with T.serial(T.ceildiv(count, COUNTERS)) as turn:
            place = T.cast(turn, "int64") * COUNTERS + T.cast(number, "int64")
            with T.If(place < count), T.Then():
                key = T.cast(outputs[place], "int64")
                if is_float(dtype):
                    infinite = int(keys_of(np.array([np.inf]).astype(dtype))[0])
                    key = T.Select(key < 0, T.int64(int(ends.min)) - key, key)
                    is_nan = T.Or(key > T.int64(infinite), key < T.int64(-infinite))
                    key = T.Select(is_nan, T.int64(int(ends.max)), key)
                is_far = T.Or(key < T.cast(least[place], "int64"), key > T.cast(greatest[place], "int64"))
                T.buffer_store(far, far[0] + T.cast(is_far, "int32"), [0])
        T.buffer_store(counts, far[0], [number])
