"""Peers of a network: runtimes with kernels of their own, kept to the same instruction sets."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass
from pathlib import Path

from benchmarks.device_class import DeviceClass
from benchmarks.timing.contestants import ModelFile, OnnxFile, OpenVinoFile
from benchmarks.timing.cpu_masking import MaskedOnnxRuntime

ONNXRUNTIME, OPENVINO = "ONNX Runtime", "OpenVINO"


@dataclass(frozen=True)
class Peer:
    """A runtime with its model. `words` name its version and how it is kept to the device class."""

    name: str
    words: str
    file: ModelFile


def peers_of(model: Path, device_class: DeviceClass, masked: MaskedOnnxRuntime | None) -> list[Peer]:
    """Return the installed peers; `masked` is ONNX Runtime for a device class that gives features up."""
    words = f"{ONNXRUNTIME} {importlib.metadata.version('onnxruntime')}"
    if masked is not None:
        words += f" told that the processor has no {' and no '.join(device_class.without)}"
    peers = [Peer(ONNXRUNTIME, words, OnnxFile(model, masked))]
    if importlib.util.find_spec("openvino") is not None:
        words = f"{OPENVINO} {importlib.metadata.version('openvino')}"
        if device_class.onednn is not None:
            words += f" with ONEDNN_MAX_CPU_ISA={device_class.onednn}"
        peers.append(Peer(OPENVINO, words, OpenVinoFile(model, device_class.onednn)))
    return peers
