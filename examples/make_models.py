"""Writes ResNet-18, ResNet-50 and MobileNet-V2 as ONNX files with seeded random weights.

    python -m examples.make_models resnet18 --out resnet18.onnx

Only onnx and numpy are needed. `--tiny` writes a network of the same kind that tests can tune in seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

from examples.graph import Graph, Tensor


@dataclass(frozen=True)
class Scale:
    """How large a network is: blocks kept per stage, channels divided by, image side, classes."""

    max_blocks: int
    divisor: int
    size: int
    classes: int

    def channels(self, count: int) -> int:
        return max(8, count // self.divisor)


FULL = Scale(max_blocks=64, divisor=1, size=224, classes=1000)
TINY = Scale(max_blocks=1, divisor=8, size=32, classes=10)

# Residual sums grow with every block unless each branch adds little.
BRANCH_GAIN = 0.25

Block = Callable[[Graph, Tensor, str, int, int], Tensor]

# (channels, blocks, stride of the first block) of every stage
RESNET18 = ((64, 2, 1), (128, 2, 2), (256, 2, 2), (512, 2, 2))
RESNET50 = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
# (expansion, channels, blocks, stride of the first block)
MOBILENET_V2 = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip


def resnet(graph: Graph, scale: Scale, stages: Sequence[tuple[int, int, int]], block: Block) -> None:
    """ResNet v1.5: a 7x7 convolution, pooling, four stages of residual blocks, the classifier."""
    x = graph.relu(graph.conv(Tensor("input", 3), "conv1", scale.channels(64), 7, stride=2), "relu")
    x = graph.max_pool(x, "maxpool")
    for stage, (channels, blocks, first_stride) in enumerate(stages, start=1):
        for index in range(min(blocks, scale.max_blocks)):
            stride = first_stride if index == 0 else 1
            x = block(graph, x, f"layer{stage}.{index}", scale.channels(channels), stride)
    graph.classifier(x, "fc", scale.classes)


def basic_block(graph: Graph, x: Tensor, name: str, channels: int, stride: int) -> Tensor:
    y = graph.relu(graph.conv(x, f"{name}.conv1", channels, 3, stride), f"{name}.relu1")
    y = graph.conv(y, f"{name}.conv2", channels, 3, gain=BRANCH_GAIN)
    return _residual(graph, x, y, name, stride)


def bottleneck_block(graph: Graph, x: Tensor, name: str, channels: int, stride: int) -> Tensor:
    y = graph.relu(graph.conv(x, f"{name}.conv1", channels, 1), f"{name}.relu1")
    y = graph.relu(graph.conv(y, f"{name}.conv2", channels, 3, stride), f"{name}.relu2")
    y = graph.conv(y, f"{name}.conv3", channels * 4, 1, gain=BRANCH_GAIN)
    return _residual(graph, x, y, name, stride)


def _residual(graph: Graph, x: Tensor, y: Tensor, name: str, stride: int) -> Tensor:
    same_shape = stride == 1 and x.channels == y.channels
    shortcut = x if same_shape else graph.conv(x, f"{name}.downsample", y.channels, 1, stride, gain=1.0)
    return graph.relu(graph.add(y, shortcut, f"{name}.add"), f"{name}.relu")


def mobilenet_v2(graph: Graph, scale: Scale) -> None:
    x = graph.relu6(graph.conv(Tensor("input", 3), "stem", scale.channels(32), 3, stride=2), "stem.relu")
    for stage, (expansion, channels, blocks, first_stride) in enumerate(MOBILENET_V2):
        for index in range(min(blocks, scale.max_blocks + 1)):
            stride = first_stride if index == 0 else 1
            x = _inverted_residual(
                graph, x, f"stage{stage}.{index}", scale.channels(channels), expansion, stride
            )
    x = graph.relu6(graph.conv(x, "head", scale.channels(1280), 1), "head.relu")
    graph.classifier(x, "fc", scale.classes)


def _inverted_residual(
    graph: Graph, x: Tensor, name: str, channels: int, expansion: int, stride: int
) -> Tensor:
    y = x
    hidden = x.channels * expansion
    if expansion != 1:
        y = graph.relu6(graph.conv(y, f"{name}.expand", hidden, 1), f"{name}.relu1")
    y = graph.conv(y, f"{name}.depthwise", hidden, 3, stride, groups=hidden)
    y = graph.conv(graph.relu6(y, f"{name}.relu2"), f"{name}.project", channels, 1)
    return graph.add(x, y, f"{name}.add") if stride == 1 and x.channels == channels else y


NETWORKS: dict[str, Callable[[Graph, Scale], None]] = {
    "resnet18": lambda graph, scale: resnet(graph, scale, RESNET18, basic_block),
    "resnet50": lambda graph, scale: resnet(graph, scale, RESNET50, bottleneck_block),
    "mobilenet_v2": mobilenet_v2,
}


def make(
    network: str, *, batch: int | str = 1, tiny: bool = False, size: int | None = None, seed: int = 0
) -> onnx.ModelProto:
    """The network as a checked ONNX model; the same arguments give the same bytes.

    A `batch` that is a word becomes a dynamic dimension of that name. Raises KeyError for an
    unknown network, ValueError for sizes below one.
    """
    scale = TINY if tiny else FULL
    side = scale.size if size is None else size
    if side < 1 or (isinstance(batch, int) and batch < 1):
        raise ValueError("batch and size must be at least 1")
    graph = Graph(np.random.default_rng(seed))
    NETWORKS[network](graph, scale)
    return graph.finish(network, batch, side, scale.classes)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write an ONNX network with seeded random weights.")
    parser.add_argument("network", choices=sorted(NETWORKS))
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--dynamic-batch", action="store_true", help="leave the batch open, as a dimension N")
    parser.add_argument("--size", type=int, help="the image's side in pixels (default 224, tiny 32)")
    parser.add_argument("--tiny", action="store_true", help="a small network of the same kind, for tests")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    batch = "N" if args.dynamic_batch else args.batch
    try:
        model = make(args.network, batch=batch, tiny=args.tiny, size=args.size, seed=args.seed)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, args.out)
    except (OSError, ValueError) as error:
        parser.exit(1, f"could not write {args.out}: {error}\n")
    print(f"wrote {args.out} ({args.out.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
