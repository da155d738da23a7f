"""Networks by PyTorch on the CPU: as a module runs, and compiled by its compiler."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest.mock import MagicMock

from benchmarks.timing.contestants import Arrays, Bind


@dataclass(frozen=True)
class TorchFile:
    """An ONNX file that onnx2torch made a module of, channels-last in memory, compiled by a backend of
    torch.compile or not at all.

    `aten` and `onednn` are the names of the best instruction set that PyTorch and its oneDNN may use.
    """

    path: Path
    backend: Literal["inductor", "zentorch"] | None = None
    aten: str | None = None
    onednn: str | None = None

    def load(self, threads: int) -> Bind:
        for variable, value in (("ATEN_CPU_CAPABILITY", self.aten), ("ONEDNN_MAX_CPU_ISA", self.onednn)):
            if value is not None:
                os.environ[variable] = value
        import torch

        torch.set_num_threads(threads)
        torch.set_grad_enabled(False)
        module = convert(self.path)
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        rank = max(parameter.dim() for parameter in module.parameters())
        function = module = module.to(memory_format=formats.get(rank, torch.channels_last))
        if self.backend is not None:
            import torch._inductor.config as inductor

            inductor.freezing = True  # packs weights ahead of time
            if self.backend == "inductor":
                function = torch.compile(module, mode="max-autotune")
            else:
                importlib.import_module(self.backend)  # registers the backend
                function = torch.compile(module, backend=self.backend)

        def bind(inputs: Arrays) -> Callable[[], Any]:
            placed = [torch.from_numpy(array) for array in inputs]
            placed = [
                one.contiguous(memory_format=formats.get(one.dim(), torch.contiguous_format))
                for one in placed
            ]
            return lambda: function(*placed)

        return bind


def convert(path: Path) -> Any:
    """Return the module that computes an ONNX file."""
    # onnx2torch loads torchvision for two operators of detectors; its wheels fit only some builds of PyTorch.
    sys.modules["torchvision"] = sys.modules["torchvision.ops"] = MagicMock()
    import onnx2torch

    return onnx2torch.convert(str(path)).eval()
