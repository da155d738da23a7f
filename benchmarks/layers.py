"""Layers of networks to which no constant was fitted: odd sizes, batches of 1 and 4.

The analytic estimate's shape factors are fitted to the operators of `benchmarks.suite` (`benchmarks.fit`), so
figures of these layers are more meaningful.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import tvm

from benchmarks.suite import OPERATORS, Shape


@dataclass(frozen=True)
class Layer:
    """An operator of the suite with a shape that isn't in the suite."""

    name: str
    operator: str
    shape: Shape
    batch: int = 1

    def module(self) -> tvm.IRModule:
        return OPERATORS[self.operator].module(self.shape, self.batch)


_LAYERS = (
    # rows, columns, terms of a sum
    Layer("dense-77x3072x768", "GMM", (77, 3072, 768)),
    Layer("dense-197x768x3072", "GMM", (197, 768, 3072)),
    Layer("dense-1x1000x2048", "GMM", (1, 1000, 2048)),
    Layer("dense-333x333x333", "GMM", (333, 333, 333)),
    Layer("dense-1001x64x96", "GMM", (1001, 64, 96)),
    Layer("heads-4x128x128x64", "GMM", (128, 128, 64), 4),
    # height, width, channels in and out, kernel, stride, padding
    Layer("conv-28x28x96x208-3", "C2D", (28, 28, 96, 208, 3, 1, 1)),
    Layer("conv-224x224x3x32-3s2", "C2D", (224, 224, 3, 32, 3, 2, 1)),
    Layer("conv-56x56x64x64-3", "C2D", (56, 56, 64, 64, 3, 1, 1)),
    Layer("conv-7x7x160x960-1", "C2D", (7, 7, 160, 960, 1, 1, 0)),
    Layer("conv-4x14x14x96x576-1", "C2D", (14, 14, 96, 576, 1, 1, 0), 4),
    Layer("conv-35x35x48x64-5", "C2D", (35, 35, 48, 64, 5, 1, 2)),
    Layer("conv-13x13x64x256-3", "C2D", (13, 13, 64, 256, 3, 1, 1)),
    Layer("conv-4x28x28x128x256-3s2", "C2D", (28, 28, 128, 256, 3, 2, 1), 4),
    Layer("grouped-28x28x256x256-3g32", "GRP", (28, 28, 256, 256, 3, 1, 1, 1, 32)),
    # height, width, channels, kernel, stride, padding
    Layer("depthwise-112x112x96-3s2", "DEP", (112, 112, 96, 3, 2, 1)),
    Layer("depthwise-28x28x240-5", "DEP", (28, 28, 240, 5, 1, 2)),
    Layer("depthwise-4x7x7x1152-5", "DEP", (7, 7, 1152, 5, 1, 2), 4),
    Layer("transposed-8x8x512x256-4s2", "T2D", (8, 8, 512, 256, 4, 2, 1)),
    Layer("conv3d-8x28x28x64x64-3", "C3D", (8, 28, 28, 64, 64, 3, 1, 1)),
    # length, channels in and out, kernel, stride, padding
    Layer("conv1d-333x80x256-3", "C1D", (333, 80, 256, 3, 1, 1)),
    # rows, columns
    Layer("softmax-2364x197", "softmax", (2364, 197)),
    Layer("layer-norm-197x768", "layer_norm", (197, 768)),
    Layer("gelu-197x3072", "GELU", (197, 3072)),
)

LAYERS: Mapping[str, Layer] = {layer.name: layer for layer in _LAYERS}
