"""Small PyTorch networks with the building blocks of torchvision and transformers. Needs PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional

IMAGE = (2, 3, 32, 32)


class Residual(nn.Module):
    """ResNet: two blocks, the second with a projection."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 7, 2, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(True), nn.MaxPool2d(3, 2, 1)
        )
        self.first = self._block(16, 16, 1)
        self.second = self._block(16, 32, 2)
        self.project = nn.Sequential(nn.Conv2d(16, 32, 1, 2, bias=False), nn.BatchNorm2d(32))
        self.pool, self.classify = nn.AdaptiveAvgPool2d(1), nn.Linear(32, 10)

    @staticmethod
    def _block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(True),
            nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        x = functional.relu(self.first(x) + x)
        x = functional.relu(self.second(x) + self.project(x))
        return self.classify(torch.flatten(self.pool(x), 1))


class InvertedResidual(nn.Module):
    """MobileNetV3: depthwise convolution, squeeze and excitation, hard swish."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(3, 24, 1), nn.BatchNorm2d(24), nn.Hardswish())
        self.depthwise = nn.Sequential(nn.Conv2d(24, 24, 5, 2, 2, groups=24), nn.BatchNorm2d(24), nn.ReLU6())
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(24, 8, 1), nn.ReLU(), nn.Conv2d(8, 24, 1), nn.Hardsigmoid()
        )
        self.project = nn.Conv2d(24, 12, 1)

    def forward(self, x: Any) -> Any:
        x = self.depthwise(self.expand(x))
        return self.project(x * self.squeeze(x)).mean([2, 3])


class Dense(nn.Module):
    """DenseNet: every layer reads the outputs of all layers before it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(n), nn.ReLU(), nn.Conv2d(n, 8, 3, padding=1)) for n in (3, 11, 19)
        )

    def forward(self, x: Any) -> Any:
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.cat(found, 1)))
        return functional.avg_pool2d(torch.cat(found, 1), 2)


class Inception(nn.Module):
    """Parallel branches of different kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.three = nn.Conv2d(3, 8, 1), nn.Conv2d(3, 8, (3, 1), padding=(1, 0))
        self.pooled = nn.Sequential(nn.AvgPool2d(3, 1, 1), nn.Conv2d(3, 8, 1))

    def forward(self, x: Any) -> Any:
        return functional.relu(torch.cat([self.one(x), self.three(x), self.pooled(x)], 1))


class Plain(nn.Module):
    """VGG: convolutions, pooling, dropout and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(16 * 8 * 8, 32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 10)),
        )

    def forward(self, x: Any) -> Any:
        return functional.log_softmax(self.layers(x), 1)


class Segmentation(nn.Module):
    """U-Net: down, up by a transposed convolution and by interpolation, with a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deep = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 2, 1)
        self.up, self.head = nn.ConvTranspose2d(8, 8, 2, 2), nn.Conv2d(16, 4, 1)

    def forward(self, x: Any) -> dict[str, Any]:
        first = functional.leaky_relu(self.down(x), 0.1)
        joined = torch.cat([first, self.up(torch.relu(self.deep(first)))], 1)
        out = functional.interpolate(self.head(joined), scale_factor=2, mode="bilinear", align_corners=False)
        return {"out": out, "features": first}


class ConvNext(nn.Module):
    """ConvNeXt: a wide depthwise convolution, layer norm over the channels, GELU, a layer scale."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.depthwise = nn.Conv2d(3, 16, 4, 4), nn.Conv2d(16, 16, 7, padding=3, groups=16)
        self.norm, self.wide, self.narrow = nn.LayerNorm(16), nn.Linear(16, 64), nn.Linear(64, 16)
        self.scale = nn.Parameter(torch.full((16,), 0.5))

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(functional.gelu(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)


class VisionTransformer(nn.Module):
    """ViT: patches, a class token, positions, an encoder layer."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 8, 8)
        self.token, self.positions = nn.Parameter(torch.zeros(1, 1, 32)), nn.Parameter(torch.randn(1, 17, 32))
        self.attention = Attention(32, 4)
        self.norms = nn.ModuleList([nn.LayerNorm(32), nn.LayerNorm(32)])
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))

    def forward(self, x: Any) -> Any:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        x = x + self.attention(self.norms[0](x))
        return (x + self.mlp(self.norms[1](x)))[:, 0]


class Attention(nn.Module):
    """Multi-head attention in one projection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Any, mask: Any = None, causal: bool = False) -> Any:
        batch, length, width = x.shape
        parts = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        found = functional.scaled_dot_product_attention(query, key, value, mask, is_causal=causal)
        return self.out(found.transpose(1, 2).reshape(batch, length, width))


class Encoder(nn.Module):
    """BERT: embeddings, attention behind a mask of bytes, a pooler."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(100, 32), nn.Embedding(16, 32)
        self.norm, self.attention = nn.LayerNorm(32, eps=1e-12), Attention(32, 4)
        self.pool = nn.Linear(32, 32)

    def forward(self, ids: Any, mask: Any) -> tuple[Any, Any]:
        x = self.norm(self.words(ids) + self.places(torch.arange(ids.shape[1])))
        hidden = (1.0 - mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
        x = x + self.attention(x, hidden)
        return x, torch.tanh(self.pool(x[:, 0]))


class Decoder(nn.Module):
    """GPT-2: causal attention, tanh GELU, logits by the embedding's own weights."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.attention, self.norm = nn.Embedding(64, 32), Attention(32, 4), nn.LayerNorm(32)
        self.mlp = nn.Sequential(nn.Linear(32, 64), nn.GELU("tanh"), nn.Linear(64, 32))

    def forward(self, ids: Any) -> Any:
        x = self.words(ids)
        x = x + self.attention(self.norm(x), causal=True)
        return (x + self.mlp(x)) @ self.words.weight.T


class Llama(nn.Module):
    """LLaMA: RMS norm, rotary positions, SwiGLU, grouped queries."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(32))
        self.query, self.key, self.value = nn.Linear(32, 32), nn.Linear(32, 16), nn.Linear(32, 16)
        self.gate, self.up, self.down = nn.Linear(32, 48), nn.Linear(32, 48), nn.Linear(48, 32)
        angles = torch.outer(torch.arange(12.0), 10000 ** (-torch.arange(0, 8, 2) / 8))
        self.register_buffer("cos", torch.cat([angles, angles], 1).cos())
        self.register_buffer("sin", torch.cat([angles, angles], 1).sin())

    def _turn(self, x: Any) -> Any:
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat([-second, first], -1) * self.sin

    def forward(self, x: Any) -> Any:
        y = self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        query = self._turn(self.query(y).view(*y.shape[:2], 4, 8).transpose(1, 2))
        key = self._turn(self.key(y).view(*y.shape[:2], 2, 8).transpose(1, 2)).repeat_interleave(2, 1)
        value = self.value(y).view(*y.shape[:2], 2, 8).transpose(1, 2).repeat_interleave(2, 1)
        scores = query @ key.transpose(-1, -2) / 8**0.5
        visible = torch.ones(12, 12, dtype=torch.bool).tril()
        found = scores.masked_fill(~visible, float("-inf")).softmax(-1) @ value
        x = x + found.transpose(1, 2).flatten(2)
        return x + self.down(functional.silu(self.gate(x)) * self.up(x))


class Mixer(nn.Module):
    """MLP-Mixer: products over places, then over channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.places, self.channels = nn.LayerNorm(32), nn.Linear(16, 16), nn.Linear(32, 32)

    def forward(self, x: Any) -> Any:
        x = x + functional.gelu(self.places(self.norm(x).mT)).mT
        return x + functional.elu(self.channels(x))


class Recurrent(nn.Module):
    """A gated recurrent cell, unrolled over a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(16, 16)

    def forward(self, x: Any) -> Any:
        state = torch.zeros(x.shape[0], 16)
        for step in range(x.shape[1]):
            state = self.cell(x[:, step], state)
        return state


def _image() -> tuple[Any, ...]:
    return (torch.randn(IMAGE),)


def _ids(count: int) -> Any:
    return torch.randint(0, count, (2, 12))


# Each network with its inputs.
MODELS: Mapping[str, tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]] = {
    "residual": (Residual, _image),
    "inverted residual": (InvertedResidual, _image),
    "dense": (Dense, _image),
    "inception": (Inception, _image),
    "plain": (Plain, _image),
    "segmentation": (Segmentation, _image),
    "convnext": (ConvNext, _image),
    "vision transformer": (VisionTransformer, _image),
    "encoder": (Encoder, lambda: (_ids(100), (torch.arange(12) < torch.tensor([[12], [7]])).long())),
    "decoder": (Decoder, lambda: (_ids(64),)),
    "llama": (Llama, lambda: (torch.randn(2, 12, 32),)),
    "mixer": (Mixer, lambda: (torch.randn(2, 16, 32),)),
    "recurrent": (Recurrent, lambda: (torch.randn(2, 3, 16),)),
}
