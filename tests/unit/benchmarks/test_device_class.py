"""Device classes with disabled features, and their names in results."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from benchmarks.device_class import CLASSES, WORKER_FEATURES, device_class
from benchmarks.networks.peers import COMPILED, IREE, ONNXRUNTIME, OPENVINO, TORCH, ZENTORCH, peers_of
from benchmarks.results import machine
from benchmarks.timing.contestants import OnnxFile, OpenVinoFile
from benchmarks.timing.cpu_masking import MaskedPackage
from benchmarks.timing.iree_network import IreeFile
from benchmarks.timing.torch_network import TorchFile

SERVER = """processor\t: 0
model name\t: Some Server
flags\t\t: fpu sse4_2 fma avx avx2 avx512f avx512_vnni

processor\t: 1
flags\t\t: fpu
"""
BOARD = "processor\t: 0\nFeatures\t: fp asimd asimddp\n"


@pytest.fixture
def cpu_info(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cpuinfo"
    path.write_text(SERVER)
    monkeypatch.setattr(machine, "CPU_INFO", path)
    return path


def test_workers_are_told_what_to_give_up_while_they_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(WORKER_FEATURES, raising=False)
    with CLASSES["avx2"].for_workers():
        assert os.environ[WORKER_FEATURES] == "-avx512f"
    assert WORKER_FEATURES not in os.environ
    monkeypatch.setenv(WORKER_FEATURES, "-fma")
    with CLASSES["sse42"].for_workers():
        assert os.environ[WORKER_FEATURES] == "-avx"
    assert os.environ[WORKER_FEATURES] == "-fma"
    with CLASSES["native"].for_workers():
        assert os.environ[WORKER_FEATURES] == "-fma"


def test_a_device_class_masks_only_features_that_the_machine_has(cpu_info: Path) -> None:
    assert device_class("avx2").without == ("avx512f",)
    assert device_class("avx512").without == ()
    cpu_info.write_text(SERVER.replace("avx512f avx512_vnni", ""))
    assert device_class("avx2").without == ()
    assert device_class("sse42").without == ("avx",)
    with pytest.raises(argparse.ArgumentTypeError, match="lacks avx512f"):
        device_class("avx512")


def test_a_board_is_no_server(cpu_info: Path) -> None:
    cpu_info.write_text(BOARD)
    assert device_class("native").without == ()
    with pytest.raises(argparse.ArgumentTypeError, match="lacks sse4_2"):
        device_class("sse42")


def test_the_machines_description_names_its_features_and_those_given_up(cpu_info: Path) -> None:
    assert "Some Server (sse4_2, avx, avx2, fma, avx512f, avx512_vnni), 2 threads" in machine.describe(2)
    less = machine.describe(2, ("avx512f",))
    assert "avx512_vnni; given up: avx512f and what builds on it), 2 threads" in less
    cpu_info.write_text(BOARD)
    assert "(asimd, asimddp), 1 threads" in machine.describe(1)
    cpu_info.unlink()
    assert "(no vector instructions that are known)" in machine.describe(1)


def test_the_largest_instruction_set_that_is_left_is_named(cpu_info: Path) -> None:
    assert machine.instruction_set() == "AVX-512"
    assert machine.instruction_set(CLASSES["avx2"].without) == "AVX2"
    assert machine.instruction_set(CLASSES["sse42"].without) == "SSE4.2"
    cpu_info.write_text(cpu_info.read_text().replace("avx512_vnni", "avx512_vnni amx_tile"))
    assert machine.instruction_set() == "AMX"
    assert machine.instruction_set(CLASSES["avx2"].without) == "AVX2"
    cpu_info.write_text(BOARD)
    assert machine.instruction_set() == ""


def test_peers_are_kept_to_the_class_and_say_how(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Path("model.onnx")
    masked = {
        name: MaskedPackage(name, Path("copy"), Path("cpuid.so"), masks_avx=False)
        for name in ("onnxruntime", "openvino")
    }
    monkeypatch.setattr("benchmarks.networks.peers.importlib.util.find_spec", lambda name: name)
    monkeypatch.setattr("benchmarks.networks.peers.importlib.metadata.version", lambda name: "1.2")
    plain = peers_of(model, CLASSES["avx512"], {})
    assert [(peer.name, peer.words) for peer in plain] == [
        (ONNXRUNTIME, "ONNX Runtime 1.2"),
        (OPENVINO, "OpenVINO 1.2"),
    ]
    kept = peers_of(model, CLASSES["avx2"], masked)
    assert [peer.file for peer in kept] == [
        OnnxFile(model, masked["onnxruntime"]),
        OpenVinoFile(model, masked["openvino"]),
    ]
    assert kept[0].words == "ONNX Runtime 1.2 told that the processor has no avx512f"
    assert kept[1].words == "OpenVINO 1.2 told that the processor has no avx512f"
    compilers = peers_of(model, CLASSES["avx2"], masked, every=True)[2:]
    assert [peer.file for peer in compilers] == [
        TorchFile(model, aten="avx2", onednn="AVX2"),
        IreeFile(model, "x86-64-v3"),
    ]
    unkept = peers_of(model, CLASSES["native"], {}, every=True)[2:]
    assert [peer.name for peer in unkept] == [TORCH, COMPILED, ZENTORCH, IREE]


def test_a_peer_that_is_not_installed_has_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.networks.peers.importlib.util.find_spec", lambda name: None)
    found = peers_of(Path("m.onnx"), CLASSES["native"], {}, every=True)
    assert [peer.name for peer in found] == [ONNXRUNTIME]
