"""ResNet-18 in PyTorch: exported for a job, and compiled by torch.compile."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.timing.contestants import Arrays, Bind
from examples.networks.convolutional import RESNET18
from examples.networks.scale import Scale


def resnet(scale: Scale) -> Any:
    """Return ResNet-18 of a scale, with seeded random weights."""
    import torch
    from torch import nn

    def convolution(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(outputs))

    class BasicBlock(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int) -> None:
            super().__init__()
            first, second = convolution(inputs, outputs, 3, stride), convolution(outputs, outputs, 3, 1)
            self.branch = nn.Sequential(first, nn.ReLU(), second)
            same = stride == 1 and inputs == outputs
            self.shortcut = nn.Identity() if same else convolution(inputs, outputs, 1, stride)

        def forward(self, x: Any) -> Any:
            return torch.relu(self.branch(x) + self.shortcut(x))

    torch.manual_seed(0)
    channels = scale.channels(64)
    layers: list[Any] = [convolution(3, channels, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    for count, blocks, first_stride in RESNET18:
        for index in range(min(blocks, scale.max_blocks)):
            layers.append(BasicBlock(channels, scale.channels(count), first_stride if index == 0 else 1))
            channels = scale.channels(count)
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, scale.classes)]
    return nn.Sequential(*layers).eval()


def export(scale: Scale, file: Path) -> None:
    """Write ResNet-18 as a PyTorch exported program."""
    import torch

    program = torch.export.export(resnet(scale), (torch.zeros(1, 3, scale.size, scale.size),))
    torch.export.save(program, file)


@dataclass(frozen=True)
class TorchCompiled:
    """ResNet-18 by torch.compile. Backend tunefarm finds the schedules of the data folder.

    Inductor with `tuned` packs weights ahead of time, searches longer, and gets images channels-last.
    """

    backend: str
    scale: Scale
    data: Path
    cache: Path
    tuned: bool = False

    def load(self, threads: int) -> Bind:
        os.environ.pop("TUNEFARM_SERVER", None)
        os.environ |= {
            "TUNEFARM_DATA": str(self.data),
            "TUNEFARM_THREADS": str(threads),
            "TORCHINDUCTOR_CACHE_DIR": str(self.cache),
        }
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        module, layout = resnet(self.scale), torch.contiguous_format
        if self.tuned:
            import torch._inductor.config as inductor

            inductor.freezing, layout = True, torch.channels_last
            module = module.to(memory_format=layout)
        function = torch.compile(
            module, backend=self.backend, **({"mode": "max-autotune"} if self.tuned else {})
        )

        def bind(inputs: Arrays) -> Callable[[], Any]:
            placed = [torch.from_numpy(array).clone(memory_format=layout) for array in inputs]
            return lambda: function(*placed)

        return bind


def compile_s(model: TorchCompiled, threads: int, inputs: Arrays) -> float:
    """Return the seconds of the first call in this process, which compiles."""
    call = model.load(threads)(inputs)
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin
