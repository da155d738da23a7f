"""Write well-known networks as ONNX files with seeded random weights.

    python -m examples.make_models resnet18 --out resnet18.onnx

Needs onnx and numpy only, and onnxruntime with `--quantized`. `--tiny` writes a network of the same kind that
tests can tune in seconds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx

from examples.networks.convolutional import (
    RESNET18,
    RESNET50,
    basic_block,
    bottleneck_block,
    convnext_t,
    dcgan,
    efficientnet_b0,
    mobilenet_v2,
    resnet,
    resnet3d_18,
    squeezenet1_1,
)
from examples.networks.scale import FULL, TINY, Scale
from examples.networks.transformers import bert_base, gpt2, vit_b16
from examples.onnx_builder import Graph

NETWORKS: dict[str, Callable[[Graph, Scale], None]] = {
    "resnet18": lambda graph, scale: resnet(graph, scale, RESNET18, basic_block),
    "resnet50": lambda graph, scale: resnet(graph, scale, RESNET50, bottleneck_block),
    "mobilenet_v2": mobilenet_v2,
    "efficientnet_b0": efficientnet_b0,
    "squeezenet1_1": squeezenet1_1,
    "dcgan": dcgan,
    "resnet3d_18": resnet3d_18,
    "convnext_t": convnext_t,
    "vit_b16": vit_b16,
    "bert_base": bert_base,
    "gpt2": gpt2,
}
NO_IMAGE = ("dcgan", "bert_base", "gpt2")


def make(
    network: str, *, batch: int | str = 1, tiny: bool = False, size: int | None = None, seed: int = 0
) -> onnx.ModelProto:
    """Build a network as a checked ONNX model; the same arguments give the same bytes.

    If `batch` is a string, it names a dynamic dimension. `size` is the side of the input image in pixels.
    Raises KeyError for an unknown network; ValueError for a size or a batch that is below 1 or that the
    network doesn't support.
    """
    scale = TINY if tiny else FULL
    side = scale.size if size is None else size
    if side < 1 or (isinstance(batch, int) and batch < 1):
        raise ValueError("batch and size must be at least 1")
    if size is not None and network in NO_IMAGE:
        raise ValueError(f"{network} takes no image, so it has no size to choose")
    graph = Graph(np.random.default_rng(seed), batch)
    NETWORKS[network](graph, replace(scale, size=side))
    return graph.build(network)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Write an ONNX network with seeded random weights.")
    parser.add_argument("network", choices=sorted(NETWORKS))
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--dynamic-batch", action="store_true", help="leave the batch open, as a dimension N")
    parser.add_argument("--size", type=int, help="side of the input image in pixels (default 224, tiny 32)")
    parser.add_argument("--tiny", action="store_true", help="a small network of the same kind, for tests")
    parser.add_argument("--quantized", action="store_true", help="in bytes, by ONNX Runtime's quantization")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args(argv)
    batch = "N" if args.dynamic_batch else args.batch
    try:
        model = make(args.network, batch=batch, tiny=args.tiny, size=args.size, seed=args.seed)
        if args.quantized:
            from examples.quantization import quantize  # loads ONNX Runtime, which only quantization needs

            model = quantize(model)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        onnx.save(model, args.out)
    except (OSError, ValueError) as error:
        parser.exit(1, f"could not write {args.out}: {error}\n")
    print(f"wrote {args.out} ({args.out.stat().st_size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
