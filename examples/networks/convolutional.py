"""Convolutional networks: ResNet for images and videos, MobileNet-V2, EfficientNet-B0, ConvNeXt-T, SqueezeNet
1.1, DCGAN's generator."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from examples.networks.scale import Scale
from examples.onnx_builder import Graph, Tensor

# Residual branches are scaled down, or the sums would grow with every block.
BRANCH_GAIN = 0.25

Block = Callable[[Graph, Tensor, str, int, int], Tensor]

# (channels, blocks, stride of the first block) of every stage
RESNET18 = ((64, 2, 1), (128, 2, 2), (256, 2, 2), (512, 2, 2))
RESNET50 = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
# (expansion, channels, blocks, stride of the first block)
MOBILENET_V2 = (
    (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
)  # fmt: skip
# (expansion, channels, blocks, stride of the first block, kernel)
EFFICIENTNET_B0 = (
    (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
)  # fmt: skip
# (squeezed, expanded) channels of the fire modules between two poolings
SQUEEZENET = (((16, 64), (16, 64)), ((32, 128), (32, 128)), ((48, 192), (48, 192), (64, 256), (64, 256)))
# (channels, blocks) of every stage
CONVNEXT_T = ((96, 3), (192, 3), (384, 9), (768, 3))
# Channels after each layer of the generator; the last layer has an image's three. They are those of PyTorch's
# example; the paper's are twice as many.
DCGAN = (512, 256, 128, 64)
LATENT = 100


def resnet(graph: Graph, scale: Scale, stages: Sequence[tuple[int, int, int]], block: Block) -> None:
    """ResNet v1.5: a 7x7 convolution, pooling, four stages of residual blocks, the classifier."""
    x = graph.conv_bn(graph.image(scale.size), "conv1", scale.channels(64), 7, stride=2)
    x = graph.max_pool(graph.relu(x, "relu"), "maxpool")
    for stage, (channels, blocks, first_stride) in enumerate(stages, start=1):
        for index in range(min(blocks, scale.max_blocks)):
            stride = first_stride if index == 0 else 1
            x = block(graph, x, f"layer{stage}.{index}", scale.channels(channels), stride)
    graph.classifier(x, "fc", scale.classes)


def basic_block(graph: Graph, x: Tensor, name: str, channels: int, stride: int) -> Tensor:
    y = graph.relu(graph.conv_bn(x, f"{name}.conv1", channels, 3, stride), f"{name}.relu1")
    y = graph.conv_bn(y, f"{name}.conv2", channels, 3, gain=BRANCH_GAIN)
    return _residual(graph, x, y, name, stride)


def bottleneck_block(graph: Graph, x: Tensor, name: str, channels: int, stride: int) -> Tensor:
    y = graph.relu(graph.conv_bn(x, f"{name}.conv1", channels, 1), f"{name}.relu1")
    y = graph.relu(graph.conv_bn(y, f"{name}.conv2", channels, 3, stride), f"{name}.relu2")
    y = graph.conv_bn(y, f"{name}.conv3", channels * 4, 1, gain=BRANCH_GAIN)
    return _residual(graph, x, y, name, stride)


def _residual(graph: Graph, x: Tensor, y: Tensor, name: str, stride: int) -> Tensor:
    same_shape = stride == 1 and x.channels == y.channels
    shortcut = x if same_shape else graph.conv_bn(x, f"{name}.downsample", y.channels, 1, stride, gain=1.0)
    return graph.relu(graph.add(y, shortcut, f"{name}.add"), f"{name}.relu")


def resnet3d_18(graph: Graph, scale: Scale) -> None:
    """3D-ResNet-18 for videos of 16 frames (Tran et al., "A Closer Look at Spatiotemporal Convolutions")."""
    side = scale.size // 2
    x = Tensor(graph.input("input", 3, scale.frames, side, side), 3)
    x = graph.conv_bn(x, "stem", scale.channels(64), (3, 7, 7), (1, 2, 2))
    x = graph.relu(x, "stem.relu")
    for stage, (channels, blocks, first_stride) in enumerate(RESNET18, start=1):
        for index in range(min(blocks, scale.max_blocks)):
            stride = first_stride if index == 0 else 1
            x = _video_block(graph, x, f"layer{stage}.{index}", scale.channels(channels), stride)
    graph.classifier(x, "fc", scale.classes)


def _video_block(graph: Graph, x: Tensor, name: str, channels: int, stride: int) -> Tensor:
    y = graph.relu(graph.conv_bn(x, f"{name}.conv1", channels, (3, 3, 3), stride), f"{name}.relu1")
    y = graph.conv_bn(y, f"{name}.conv2", channels, (3, 3, 3), gain=BRANCH_GAIN)
    if stride != 1 or x.channels != channels:
        x = graph.conv_bn(x, f"{name}.downsample", channels, (1, 1, 1), stride, gain=1.0)
    return graph.relu(graph.add(y, x, f"{name}.add"), f"{name}.relu")


def convnext_t(graph: Graph, scale: Scale) -> None:
    """ConvNeXt-T: large depthwise windows, normalized channels (Liu et al., "A ConvNet for the 2020s")."""
    x = graph.image(scale.size)
    for stage, (channels, blocks) in enumerate(CONVNEXT_T):
        name, channels = f"stages.{stage}", scale.channels(channels)
        if stage == 0:
            x = graph.conv(x, "stem", channels, 4, 4, pad=0, bias=True)
            x = _normalized_channels(graph, x, "stem.norm")
        else:
            x = _normalized_channels(graph, x, f"{name}.norm")
            x = graph.conv(x, f"{name}.downsample", channels, 2, 2, pad=0, bias=True)
        for index in range(min(blocks, scale.max_blocks)):
            x = _convnext_block(graph, x, f"{name}.{index}")
    x = graph.flatten(graph.global_average_pool(x, "pool"), "flatten")
    x = graph.layer_norm(x, "norm", 1e-6)
    graph.gemm(x, "head", scale.classes, graph.output("output", scale.classes))


def _normalized_channels(graph: Graph, x: Tensor, name: str) -> Tensor:
    last = Tensor(graph.transpose(x.name, f"{name}.last", 0, 2, 3, 1), x.channels)
    y = graph.layer_norm(last, name, 1e-6)
    return Tensor(graph.transpose(y.name, f"{name}.first", 0, 3, 1, 2), x.channels)


def _convnext_block(graph: Graph, x: Tensor, name: str) -> Tensor:
    y = graph.conv(x, f"{name}.depthwise", x.channels, 7, groups=x.channels, bias=True)
    last = Tensor(graph.transpose(y.name, f"{name}.last", 0, 2, 3, 1), x.channels)
    y = graph.linear(graph.layer_norm(last, f"{name}.norm", 1e-6), f"{name}.fc1", 4 * x.channels)
    y = graph.linear(graph.gelu(y, f"{name}.gelu"), f"{name}.fc2", x.channels)
    gamma = graph.weight(f"{name}.gamma", graph.normal((x.channels,), BRANCH_GAIN))
    scaled = graph.node("Mul", f"{name}.scaled", [y.name, gamma])
    branch = Tensor(graph.transpose(scaled, f"{name}.first", 0, 3, 1, 2), x.channels)
    return graph.add(x, branch, f"{name}.add")


def mobilenet_v2(graph: Graph, scale: Scale) -> None:
    x = graph.conv_bn(graph.image(scale.size), "stem", scale.channels(32), 3, stride=2)
    x = graph.relu6(x, "stem.relu")
    for stage, (expansion, channels, blocks, first_stride) in enumerate(MOBILENET_V2):
        for index in range(min(blocks, scale.max_blocks + 1)):
            stride = first_stride if index == 0 else 1
            x = _inverted_residual(
                graph, x, f"stage{stage}.{index}", scale.channels(channels), expansion, stride
            )
    x = graph.relu6(graph.conv_bn(x, "head", scale.channels(1280), 1), "head.relu")
    graph.classifier(x, "fc", scale.classes)


def _inverted_residual(
    graph: Graph, x: Tensor, name: str, channels: int, expansion: int, stride: int
) -> Tensor:
    y = x
    hidden = x.channels * expansion
    if expansion != 1:
        y = graph.relu6(graph.conv_bn(y, f"{name}.expand", hidden, 1), f"{name}.relu1")
    y = graph.conv_bn(y, f"{name}.depthwise", hidden, 3, stride, groups=hidden)
    y = graph.conv_bn(graph.relu6(y, f"{name}.relu2"), f"{name}.project", channels, 1)
    return graph.add(x, y, f"{name}.add") if stride == 1 and x.channels == channels else y


def efficientnet_b0(graph: Graph, scale: Scale) -> None:
    x = graph.conv_bn(graph.image(scale.size), "stem", scale.channels(32), 3, stride=2)
    x = graph.silu(x, "stem.silu")
    for stage, (expansion, channels, blocks, first_stride, kernel) in enumerate(EFFICIENTNET_B0):
        for index in range(min(blocks, scale.max_blocks + 1)):
            stride = first_stride if index == 0 else 1
            x = _gated_residual(
                graph, x, f"stage{stage}.{index}", scale.channels(channels), expansion, stride, kernel
            )
    x = graph.silu(graph.conv_bn(x, "head", scale.channels(1280), 1), "head.silu")
    graph.classifier(x, "fc", scale.classes)


def _gated_residual(
    graph: Graph, x: Tensor, name: str, channels: int, expansion: int, stride: int, kernel: int
) -> Tensor:
    """An inverted residual block with squeeze-and-excitation: channels are gated by their means."""
    y = x
    hidden = x.channels * expansion
    if expansion != 1:
        y = graph.silu(graph.conv_bn(y, f"{name}.expand", hidden, 1), f"{name}.silu1")
    y = graph.conv_bn(y, f"{name}.depthwise", hidden, kernel, stride, groups=hidden)
    y = _squeeze_excitation(graph, graph.silu(y, f"{name}.silu2"), f"{name}.se", max(1, x.channels // 4))
    adds = stride == 1 and x.channels == channels
    y = graph.conv_bn(y, f"{name}.project", channels, 1, gain=BRANCH_GAIN / y.moment if adds else None)
    return graph.add(y, x, f"{name}.add") if adds else y


def _squeeze_excitation(graph: Graph, x: Tensor, name: str, squeezed: int) -> Tensor:
    y = graph.conv(graph.global_average_pool(x, f"{name}.pool"), f"{name}.fc1", squeezed, 1, bias=True)
    y = graph.conv(graph.silu(y, f"{name}.silu"), f"{name}.fc2", x.channels, 1, bias=True)
    gate = graph.node("Sigmoid", f"{name}.sigmoid", [y.name])
    # A gate roughly halves the values.
    return Tensor(graph.node("Mul", f"{name}.scale", [gate, x.name]), x.channels, x.moment / 4)


def squeezenet1_1(graph: Graph, scale: Scale) -> None:
    x = graph.conv(graph.image(scale.size), "features.0", scale.channels(64), 3, stride=2, pad=0, bias=True)
    x = graph.relu(x, "features.0.relu")
    for stage, modules in enumerate(SQUEEZENET):
        x = graph.max_pool(x, f"pool{stage}", pad=0, ceil=True)
        for index, (squeezed, expanded) in enumerate(modules[: scale.max_blocks * 2]):
            x = _fire(graph, x, f"fire{stage}.{index}", scale.channels(squeezed), scale.channels(expanded))
    x = graph.relu(graph.conv(x, "classifier.1", scale.classes, 1, bias=True), "classifier.2")
    graph.flatten(
        graph.global_average_pool(x, "classifier.3"), "flatten", graph.output("output", scale.classes)
    )


def _fire(graph: Graph, x: Tensor, name: str, squeezed: int, expanded: int) -> Tensor:
    x = graph.relu(graph.conv(x, f"{name}.squeeze", squeezed, 1, bias=True), f"{name}.squeeze.relu")
    branches = [
        graph.relu(graph.conv(x, f"{name}.{branch}", expanded, kernel, bias=True), f"{name}.{branch}.relu")
        for branch, kernel in (("expand1x1", 1), ("expand3x3", 3))
    ]
    y = graph.node("Concat", f"{name}.concat", [branch.name for branch in branches], axis=1)
    return Tensor(y, 2 * expanded, branches[0].moment)


def dcgan(graph: Graph, scale: Scale) -> None:
    """DCGAN's generator: turns a random vector into 4x4 pixels, and doubles these four times to 64x64."""
    x = Tensor(graph.input("input", LATENT, 1, 1), LATENT)
    for index, channels in enumerate(DCGAN):
        name = f"main.{3 * index}"
        if index == 0:
            # Here each pixel sums one product per channel, in the other layers four.
            x = graph.conv_transposed(x, name, scale.channels(channels), 4, 1, 0, gain=16.0)
        else:
            x = graph.conv_transposed(x, name, scale.channels(channels), 4, 2, 1)
        x = graph.relu(graph.batch_norm(x, f"{name}.bn"), f"{name}.relu")
    x = graph.conv_transposed(x, "main.12", 3, 4, 2, 1)
    graph.node("Tanh", "main.13", [x.name], graph.output("output", 3, 64, 64))
