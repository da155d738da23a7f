"""Whom a network is compared with: runtimes with kernels of their own, kept to the same instruction sets."""

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
    """`words` say which one it is, and how it was kept to the device class; `file` is the model for it."""

    name: str
    words: str
    file: ModelFile


def peers_of(model: Path, device_class: DeviceClass, masked: MaskedOnnxRuntime | None) -> list[Peer]:
    """The peers that are installed; `masked` is ONNX Runtime for a device class that gives something up."""
    peers = [_onnxruntime(model, device_class, masked)]
    if importlib.util.find_spec("openvino") is not None:
        peers.append(_openvino(model, device_class))
    return peers


def _onnxruntime(model: Path, device_class: DeviceClass, masked: MaskedOnnxRuntime | None) -> Peer:
    words = f"{ONNXRUNTIME} {importlib.metadata.version('onnxruntime')}"
    if masked is not None:
        words += f" told that the processor has no {' and no '.join(device_class.without)}"
    return Peer(ONNXRUNTIME, words, OnnxFile(model, masked))


def _openvino(model: Path, device_class: DeviceClass) -> Peer:
    words = f"{OPENVINO} {importlib.metadata.version('openvino')}"
    if device_class.onednn is not None:
        words += f" with ONEDNN_MAX_CPU_ISA={device_class.onednn}"
    return Peer(OPENVINO, words, OpenVinoFile(model, device_class.onednn))
