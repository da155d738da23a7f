"""A variant that computes transposed convolutions as ordinary convolutions, one for each phase of output
pixels.

A transposed convolution of stride s inserts s - 1 zeros between the pixels of its input, and convolves.
Output pixels whose coordinates have equal remainders modulo s (a phase) use the same weights: every s-th one.
So each phase is an ordinary convolution with a kernel of ceil(k / s) pixels (Shi et al., "Is the
deconvolution layer the same as a convolutional layer?", 2016). Products with zeros are left out, so results
differ only in the order of sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax, te, topi
from tvm.ir import Call, GenericConst

from compiler.constants.fold import static_shape
from compiler.variants.rewriting import Kernel, rewrite_calls

# With fewer outputs than the lanes of a vector, pixels of a row fill vectors in their place.
FEW_OUTPUTS = 8


class Subpixel:
    """Computes transposed convolutions channels-last, phase by phase, without zeros between pixels.

        conv[o, h, w] = sum(dilated[c, h + i, w + j] * weight[c, o, k-1 - i, k-1 - j])         i, j < k
    ->
        products[t, r, h, w, o] = sum(data[c, h + (t + p) // s - i, w + (r + p) // s - j]
                                      * weight'[t, r, i, j, c, o])                             i, j < k / s
        conv[o, h, w] = products[h % s, w % s, h // s, w // s, o]

    With few outputs, data and products stay channels-first: products[t, r, o, h, w].
    """

    name = "subpixel"
    exact = True

    def rewrite(self, operators: tvm.IRModule) -> tvm.IRModule | None:
        """Rewrite the transposed convolutions that `applies` accepts; None if there are none."""
        return rewrite_calls(operators, self.name, _kernel)


def applies(call: Call) -> bool:
    """Return whether a call is a transposed convolution of 32-bit floats, channels first, with constant
    weights that are not dilated."""
    if getattr(call.op, "name", "") != "relax.nn.conv2d_transpose" or static_shape(call) is None:
        return False
    attrs, weight = call.attrs, call.args[1]
    return (
        isinstance(weight, GenericConst)
        and (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == ("NCHW", "IOHW", "NCHW")
        and all(int(step) == 1 for step in attrs.dilation)
        and {str(weight.value.dtype), str(call.ty.dtype)} == {"float32"}
    )


def _kernel(call: Call) -> Kernel | None:
    if not applies(call):
        return None
    data, weight = call.args
    vertical, horizontal = axes_of(call)
    groups = int(call.attrs.groups)
    phases = weights_by_phase(weight.value.numpy(), vertical, horizontal, groups)

    def compute(data: te.Tensor, weight: te.Tensor) -> te.Tensor:
        return transposed_convolution(data, weight, vertical, horizontal, groups)

    return Kernel(compute, (data, relax.const(phases)))


@dataclass(frozen=True)
class Direction:
    """One direction of a transposed convolution: pixels of its input, kernel and output, the stride, and the
    padding before the first pixel."""

    pixels: int
    kernel: int
    results: int
    stride: int
    padding: int

    @property
    def phases(self) -> int:
        """The number of phases: the stride. For a single pixel, it is the kernel's size, because no two
        output pixels share a weight."""
        return self.kernel if self.pixels == 1 else self.stride

    @property
    def taps(self) -> int:
        """The number of the kernel's pixels that each phase uses; weights beyond the kernel are zero."""
        return -(-self.kernel // self.phases)

    @property
    def windows(self) -> int:
        """The number of output pixels of each phase."""
        return -(-self.results // self.phases)

    @property
    def beyond(self) -> int:
        """The number of pixels that the last window of the last phase reads after the input."""
        return max(self.windows - 1 + (self.phases - 1 + self.padding) // self.phases - self.pixels + 1, 0)


def axes_of(call: Call) -> tuple[Direction, Direction]:
    """Return the vertical and the horizontal direction of a transposed convolution of static shapes."""
    data, weight, result = (expr.ty.shape.values for expr in (*call.args, call))
    vertical, horizontal = (
        Direction(*map(int, (data[at], weight[at], result[at], stride, padding)))
        for at, stride, padding in zip((2, 3), call.attrs.strides, call.attrs.padding[:2], strict=True)
    )
    return vertical, horizontal


def weights_by_phase(
    weight: NDArray[Any], vertical: Direction, horizontal: Direction, groups: int
) -> NDArray[np.float32]:
    """Reorder weights: [inputs, outputs of a group, k, k'] -> [s, s', taps, taps', inputs of a group,
    outputs].

    Phase t uses every s-th weight, beginning with that at (t + padding) % s.
    """
    inputs, outputs = weight.shape[:2]
    split = weight.reshape(groups, inputs // groups, outputs, *weight.shape[2:])
    by_pixel = split.transpose(3, 4, 1, 0, 2).reshape(*weight.shape[2:], inputs // groups, groups * outputs)
    beyond = [(0, axis.taps * axis.phases - axis.kernel) for axis in (vertical, horizontal)]
    padded = np.pad(by_pixel, (*beyond, (0, 0), (0, 0)))
    rows, columns = (
        (np.arange(axis.phases)[:, None] + axis.padding) % axis.phases + axis.phases * np.arange(axis.taps)
        for axis in (vertical, horizontal)
    )
    return np.ascontiguousarray(padded[rows[:, None, :, None], columns[None, :, None, :]], dtype=np.float32)


def transposed_convolution(
    data: te.Tensor, weight: te.Tensor, vertical: Direction, horizontal: Direction, groups: int
) -> te.Tensor:
    """Compute a transposed convolution from weights by phase.

    data: [n, inputs, h, w], weight: as `weights_by_phase` gives it; the result is [n, outputs, h', w'].
    """
    batch = int(data.shape[0])
    inputs, outputs = int(weight.shape[4]), int(weight.shape[5])
    channels_first = outputs < min(FEW_OUTPUTS, horizontal.windows)

    def arrange(channel: Any, *pixel: Any) -> tuple[Any, ...]:
        return (channel, *pixel) if channels_first else (*pixel, channel)

    before, beyond = (vertical.taps - 1, horizontal.taps - 1), (vertical.beyond, horizontal.beyond)
    if not channels_first:
        data = channels_last(data)
    padded = topi.nn.pad(data, (0, *arrange(0, *before)), (0, *arrange(0, *beyond)), name="padded")
    i, j = (te.reduce_axis((0, axis.taps), name) for axis, name in ((vertical, "i"), (horizontal, "j")))
    c = te.reduce_axis((0, inputs), "c")

    def pixel(window: Any, phase: Any, tap: Any, axis: Direction) -> Any:
        return window + (phase + axis.padding) // axis.phases + (axis.taps - 1) - tap

    def product(n: Any, t: Any, r: Any, *place: Any) -> Any:
        o, h, w = place if channels_first else (place[2], *place[:2])
        channel = c if groups == 1 else o // (outputs // groups) * inputs + c
        value = padded[n, *arrange(channel, pixel(h, t, i, vertical), pixel(w, r, j, horizontal))]
        return te.sum(value * weight[t, r, i, j, c, o], axis=[i, j, c])

    phases, windows = (vertical.phases, horizontal.phases), (vertical.windows, horizontal.windows)
    products = te.compute((batch, *phases, *arrange(outputs, *windows)), product, name="products")

    def result(n: Any, o: Any, h: Any, w: Any) -> Any:
        window = h // vertical.phases, w // horizontal.phases
        return products[n, h % vertical.phases, w % horizontal.phases, *arrange(o, *window)]

    return te.compute((batch, outputs, vertical.results, horizontal.results), result, name="convolution")


def channels_last(data: te.Tensor) -> te.Tensor:
    """Transpose [n, channels, h, w] to [n, h, w, channels]."""
    batch, channels, *image = data.shape
    return te.compute((batch, *image, channels), lambda n, h, w, c: data[n, c, h, w], name="channels_last")
