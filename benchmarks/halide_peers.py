"""Halide as a peer: a product and a convolution, scheduled by its Adams2019, compiled in memory.

Halide numbers axes from the innermost outwards, so its indices are those of the arrays backwards.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.contestants import Arrays, Bind

AUTOSCHEDULER = "Adams2019"


class HalideMatmul:
    """A product of two matrices."""

    def load(self, threads: int) -> Bind:
        def bind(inputs: Arrays) -> Callable[[], Any]:
            import halide as hl

            a, b = map(hl.Buffer, inputs)
            rows, terms = inputs[0].shape
            j, i, k = hl.Var("j"), hl.Var("i"), hl.RDom([(0, terms)])
            product = hl.Func("product")
            product[j, i] = hl.f32(0)
            product[j, i] += a[k, i] * b[j, k]
            return _compiled(product, (inputs[1].shape[1], rows), threads)

        return bind


@dataclass(frozen=True)
class HalideConv2d:
    """A convolution of channels-first inputs, laid out channels-last for it ahead of time."""

    stride: int
    padding: int

    def load(self, threads: int) -> Bind:
        def bind(inputs: Arrays) -> Callable[[], Any]:
            image, weight = inputs
            _, channels, height, width = image.shape
            filters, _, kernel, _ = weight.shape
            extents = ((extent + 2 * self.padding - kernel) // self.stride + 1 for extent in (width, height))
            return _compiled(self._convolution(image, weight, channels, kernel), (filters, *extents), threads)

        return bind

    def _convolution(self, image: Any, weight: Any, channels: int, kernel: int) -> Any:
        import halide as hl

        filters = hl.Buffer(np.ascontiguousarray(weight.transpose(2, 3, 1, 0)))
        f, c, x, y = (hl.Var(name) for name in "fcxy")
        r = hl.RDom([(0, channels), (0, kernel), (0, kernel)])
        padded, result = hl.Func("padded"), hl.Func("result")
        padded[c, x, y] = self._padded(image, c, x - self.padding, y - self.padding)
        result[f, x, y] = hl.f32(0)
        read = padded[r[0], x * self.stride + r[1], y * self.stride + r[2]]
        result[f, x, y] += read * filters[f, r[0], r[1], r[2]]
        return result

    def _padded(self, image: Any, c: Any, x: Any, y: Any) -> Any:
        import halide as hl

        _, _, height, width = image.shape
        data = hl.Buffer(np.ascontiguousarray(image[0].transpose(1, 2, 0)))
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        near = data[c, hl.clamp(x, 0, width - 1), hl.clamp(y, 0, height - 1)]
        return hl.select(inside, near, hl.f32(0)) if self.padding else data[c, x, y]


def _compiled(result: Any, extents: tuple[int, ...], threads: int) -> Callable[[], Any]:
    """A call that computes `result` into the same array again and again."""
    os.environ["HL_NUM_THREADS"] = str(threads)
    import halide as hl

    hl.load_plugin(f"autoschedule_{AUTOSCHEDULER.lower()}")
    result.set_estimates([(0, extent) for extent in extents])
    pipeline, target = hl.Pipeline(result), hl.get_host_target()
    pipeline.apply_autoscheduler(target, hl.AutoschedulerParams(AUTOSCHEDULER, {"parallelism": threads}))
    pipeline.compile_jit(target)
    output = np.zeros(extents[::-1], np.float32)
    buffer = hl.Buffer(output)

    def call() -> Any:
        pipeline.realize(buffer)
        return output

    return call
