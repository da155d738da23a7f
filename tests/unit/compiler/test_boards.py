"""Boards are recognised by their device tree, and LLVM generates code for all of them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tvm.target.codegen import target_has_features

import compiler.target
from compiler.boards import BOARDS, Board, find_board
from compiler.target import detect_device, parse_target


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Raspberry Pi 3 Model B Plus Rev 1.3", "raspberry-pi-3"),
        ("Raspberry Pi 4 Model B Rev 1.5", "raspberry-pi-4"),
        ("Raspberry Pi 400 Rev 1.0", "raspberry-pi-4"),
        ("Raspberry Pi Compute Module 4 Rev 1.1", "raspberry-pi-4"),
        ("Raspberry Pi 5 Model B Rev 1.0", "raspberry-pi-5"),
        ("Raspberry Pi 500 Rev 1.0", "raspberry-pi-5"),
        ("NVIDIA Jetson Nano Developer Kit", "jetson-nano"),
        ("NVIDIA Jetson Orin Nano Developer Kit", "jetson-orin-nano"),
        ("Jetson AGX Orin", "jetson-agx-orin"),
    ],
)
def test_boards_are_recognised(model: str, name: str) -> None:
    board = find_board(model)
    assert board is not None
    assert board.name == name


@pytest.mark.parametrize("model", ["", "Raspberry Pi Zero 2 W Rev 1.0", "A board of its own"])
def test_other_boards_are_not(model: str) -> None:
    assert find_board(model) is None


def test_a_board_has_the_caches_of_its_data_sheet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Linux on a Raspberry Pi 4 reports no caches."""
    model = tmp_path / compiler.target.DEVICE_TREE
    model.parent.mkdir(parents=True)
    model.write_bytes(b"Raspberry Pi 4 Model B Rev 1.5\x00")
    monkeypatch.setattr(compiler.target, "ROOT", tmp_path)
    device = detect_device()
    assert (device.l1_bytes, device.l2_bytes, device.l3_bytes) == (32 << 10, 256 << 10, 1 << 20)


@pytest.mark.parametrize("board", BOARDS.values(), ids=BOARDS)
def test_llvm_knows_every_board(board: Board) -> None:
    facts = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": board.mcpu, "num-cores": board.cores}
    target = json.dumps(facts)
    assert board.device("any", target).cores == board.cores
    assert compiler.target.host_triple(parse_target(target)) == "aarch64-linux-gnu"
    assert ("asimddp" in board.features) == target_has_features("dotprod", parse_target(target))
