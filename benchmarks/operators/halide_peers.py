"""A matrix product and a convolution by Halide, scheduled by its Adams2019 autoscheduler, compiled in memory.

Halide numbers axes from the innermost one, so indices are in the reverse order of numpy's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing.contestants import Arrays, Bind

AUTOSCHEDULER = "Adams2019"


class HalideMatmul:
    """The product of two matrices."""

    def load(self, threads: int) -> Bind:
        def bind(inputs: Arrays) -> Callable[[], Any]:
            import halide as hl

            a, b = map(hl.Buffer, inputs)
            rows, terms = inputs[0].shape
            j, i, k = hl.Var("j"), hl.Var("i"), hl.RDom([(0, terms)])
            product = hl.Func("product")
            product[j, i] = hl.f32(0)
            product[j, i] += a[k, i] * b[j, k]
            return _compiled(product, (inputs[1].shape[1], rows), threads, inputs)

        return bind


@dataclass(frozen=True)
class HalideConv2d:
    """A convolution; channels-first inputs are laid out channels-last ahead of time."""

    stride: int
    padding: int

    def load(self, threads: int) -> Bind:
        def bind(inputs: Arrays) -> Callable[[], Any]:
            image = np.ascontiguousarray(inputs[0][0].transpose(1, 2, 0))
            weight = np.ascontiguousarray(inputs[1].transpose(2, 3, 1, 0))
            (height, width, _), (kernel, _, _, filters) = image.shape, weight.shape
            across, down = (
                (extent + 2 * self.padding - kernel) // self.stride + 1 for extent in (width, height)
            )
            result = self._convolution(image, weight)
            return _compiled(result, (filters, across, down), threads, (image, weight))

        return bind

    def _convolution(self, image: Any, weight: Any) -> Any:
        import halide as hl

        kernel, _, channels, _ = weight.shape
        filters = hl.Buffer(weight)
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

        height, width, _ = image.shape
        data = hl.Buffer(image)
        if not self.padding:
            return data[c, x, y]
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        return hl.select(inside, data[c, hl.clamp(x, 0, width - 1), hl.clamp(y, 0, height - 1)], hl.f32(0))


def _compiled(result: Any, extents: Sequence[int], threads: int, operands: Arrays) -> Callable[[], Any]:
    """Schedule and compile `result`; return a call that computes it into one array.

    Halide keeps pointers to `operands`, so the call keeps them alive.
    """
    os.environ["HL_NUM_THREADS"] = str(threads)
    import halide as hl

    (plugin,) = Path(hl.__file__).parent.glob(f"lib*/libautoschedule_{AUTOSCHEDULER.lower()}.so")
    hl.load_plugin(str(plugin))
    result.set_estimates([(0, extent) for extent in extents])
    pipeline, target = hl.Pipeline(result), hl.get_host_target()
    pipeline.apply_autoscheduler(target, hl.AutoschedulerParams(AUTOSCHEDULER, {"parallelism": threads}))
    pipeline.compile_jit(target)
    kept = (np.zeros(tuple(extents)[::-1], np.float32), *operands)
    buffer = hl.Buffer(kept[0])

    def call() -> Any:
        pipeline.realize(buffer)
        return kept[0]

    return call
