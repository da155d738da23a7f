"""A network's peers: runtimes with their own kernels, limited to the same instruction sets."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.device_class import DeviceClass
from benchmarks.timing.contestants import ModelFile, OnnxFile, OpenVinoFile
from benchmarks.timing.cpu_masking import MaskedPackage
from benchmarks.timing.iree_network import IreeFile
from benchmarks.timing.torch_network import TorchFile

ONNXRUNTIME, OPENVINO = "ONNX Runtime", "OpenVINO"
TORCH, COMPILED, IREE = "PyTorch", "torch.compile (max-autotune)", "IREE"
ZENTORCH = "zentorch"
METASCHEDULE = "MetaSchedule"


@dataclass(frozen=True)
class Peer:
    """A runtime with its model. `words` describes its version and how it is limited to the device class."""

    name: str
    words: str
    file: ModelFile


def peers_of(
    model: Path, device_class: DeviceClass, masked: Mapping[str, MaskedPackage], every: bool = False
) -> list[Peer]:
    """Return ONNX Runtime and the installed ones of OpenVINO and, with `every`, PyTorch, zentorch and IREE.

    `masked` has the packages of the first two by name, for a device class with disabled features.
    """
    told = f" told that the processor has no {' and no '.join(device_class.without)}" if masked else ""
    words = f"{ONNXRUNTIME} {importlib.metadata.version('onnxruntime')}{told}"
    peers = [Peer(ONNXRUNTIME, words, OnnxFile(model, masked.get("onnxruntime")))]
    if importlib.util.find_spec("openvino") is not None:
        words = f"{OPENVINO} {importlib.metadata.version('openvino')}{told}"
        peers.append(Peer(OPENVINO, words, OpenVinoFile(model, masked.get("openvino"))))
    return [*peers, *_compilers(model, device_class)] if every else peers


def _compilers(model: Path, device_class: DeviceClass) -> Iterator[Peer]:
    if importlib.util.find_spec("onnx2torch") is not None:
        version = importlib.metadata.version("torch")
        kept = "" if device_class.aten is None else f" with ATEN_CPU_CAPABILITY={device_class.aten}"
        file = TorchFile(model, aten=device_class.aten, onednn=device_class.onednn)
        yield Peer(TORCH, f"{TORCH} {version}{kept}", file)
        if device_class.aten is None:  # they compile for this machine's processor
            yield Peer(COMPILED, f"{COMPILED} of {TORCH} {version}", TorchFile(model, "inductor"))
            if importlib.util.find_spec(ZENTORCH) is not None:
                words = f"{ZENTORCH} {importlib.metadata.version(ZENTORCH)} with {TORCH} {version}"
                yield Peer(ZENTORCH, words, TorchFile(model, "zentorch"))
    if importlib.util.find_spec("iree") is not None:
        words = f"{IREE} {importlib.metadata.version('iree-base-compiler')} for {device_class.llvm_cpu}"
        yield Peer(IREE, words, IreeFile(model, device_class.llvm_cpu))
