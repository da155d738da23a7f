"""What this machine is, and what other machines would say of themselves."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import tvm

import compiler.target
from compiler.target import parse_target, probe
from search.device import Device


def test_this_machine_is_a_device_whose_target_tvm_knows() -> None:
    device = probe()
    assert device.cores == len(os.sched_getaffinity(0))
    assert device.mcpu
    assert device.toolchain.startswith("tvm ")
    assert Device.from_json(device.to_json()) == device
    assert str(parse_target(device.target).kind) == "llvm"


def test_the_target_is_json_that_says_how_many_cores() -> None:
    facts = json.loads(probe(cores=3).target)
    assert facts["num-cores"] == 3
    assert facts["kind"] == "llvm"
    assert facts["mtriple"].endswith("-linux-gnu")


def test_probing_twice_gives_the_same_class() -> None:
    assert probe(cores=2).key == probe(cores=2).key
    assert probe(cores=2).key != probe(cores=1).key


def _machine(
    monkeypatch: pytest.MonkeyPatch, folder: Path, cpu_info: str, caches: list[tuple[str, ...]]
) -> None:
    """A machine whose system tells this; caches are (type, level, size)."""
    (folder / "cpuinfo").write_text(cpu_info)
    for number, facts in enumerate(caches):
        cache = folder / f"index{number}"
        cache.mkdir()
        for name, value in zip(("type", "level", "size"), facts, strict=True):
            (cache / name).write_text(f"{value}\n")
    monkeypatch.setattr(compiler.target, "CPU_INFO", folder / "cpuinfo")
    monkeypatch.setattr(compiler.target, "CACHES", folder)


def test_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    caches = [
        ("Data", "1", "48K"),
        ("Instruction", "1", "32K"),
        ("Unified", "2", "2048K"),
        ("Unified", "3", "105M"),
    ]
    _machine(monkeypatch, tmp_path, "processor: 0\nflags : fpu sse4_1 avx avx2 fma avx512f ht\n", caches)
    device = probe()
    assert device.features == ("avx", "avx2", "avx512f", "fma", "sse4_1")
    assert device.vector_bytes == 64
    assert (device.l1_bytes, device.l2_bytes, device.l3_bytes) == (48 << 10, 2 << 20, 105 << 20)


@pytest.mark.parametrize(
    ("cpu_info", "vector_bytes"),
    [
        ("flags : fpu avx avx2\n", 32),
        ("flags : fpu sse4_2\n", 16),
        ("Features : fp asimd sve\n", 16),
        ("", 16),
    ],
)
def test_vectors_are_as_long_as_the_instructions_allow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cpu_info: str, vector_bytes: int
) -> None:
    _machine(monkeypatch, tmp_path, cpu_info, [])
    assert probe().vector_bytes == vector_bytes


@pytest.mark.parametrize(
    ("mcpu", "flags", "told"),
    [
        ("x86-64", "avx512f avx512_vnni", ["+avx512vnni"]),
        ("x86-64", "avx512f", None),
        ("znver5", "avx512f avx512_vnni", None),
    ],
)
def test_llvm_is_told_of_instructions_that_a_general_name_does_not_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mcpu: str, flags: str, told: list[str] | None
) -> None:
    _machine(monkeypatch, tmp_path, f"flags : {flags}\n", [])
    known = tvm.get_global_func
    monkeypatch.setattr(
        tvm, "get_global_func", lambda name: (lambda: mcpu) if name.endswith("system_cpu") else known(name)
    )
    monkeypatch.setattr(compiler.target.platform, "machine", lambda: "x86_64")
    device = probe()
    assert json.loads(device.target).get("mattr") == told
    assert str(parse_target(device.target).kind) == "llvm"


def test_a_board_that_tells_nothing_has_small_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _machine(monkeypatch, tmp_path, "", [("Unified", "2", "unknown"), ("Data", "1", "")])
    device = probe()
    assert (device.l1_bytes, device.l2_bytes, device.l3_bytes) == (32 << 10, 512 << 10, 2 << 20)
    assert device.features == ()


def test_a_machine_without_these_files_is_probed_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(compiler.target, "CPU_INFO", tmp_path / "nowhere")
    monkeypatch.setattr(compiler.target, "CACHES", tmp_path / "nowhere")
    assert probe().vector_bytes == 16


@pytest.mark.parametrize(
    "text", ["", "llvm", "{}", "[]", "null", '{"kind":"abacus"}', '{"kind":"llvm","legs":4}']
)
def test_what_is_no_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a target that TVM knows"):
        parse_target(text)
