"""This machine and others are detected as devices."""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import tvm
from tvm import te, tirx
from tvm.s_tir import Schedule
from tvm.target.codegen import llvm_get_cpu_features, target_has_features

import compiler.target
from compiler.codegen.compilation import compile_scheduled
from compiler.target import detect_device, parse_target
from core.device import Device
from core.instruction_sets import FeatureError, instruction_sets
from search.sketches.intrinsics import INTRINSICS
from tests.devices import EMULATED_CLASSES
from tests.machines import AVX2, AVX512, MACHINES, SSE, ZEN4
from tests.workloads import module


def test_this_machine_is_a_device_whose_target_tvm_knows() -> None:
    device = detect_device()
    assert device.cores == len(os.sched_getaffinity(0))
    assert device.mcpu
    assert device.toolchain.startswith("tvm ")
    assert Device.from_json(device.to_json()) == device
    assert str(parse_target(device.target).kind) == "llvm"


def test_the_target_is_json_that_says_how_many_cores() -> None:
    facts = json.loads(detect_device(cores=3).target)
    assert facts["num-cores"] == 3
    assert facts["kind"] == "llvm"
    assert facts["mtriple"].endswith("-linux-gnu")


def test_detecting_twice_gives_the_same_class() -> None:
    assert detect_device(cores=2).key == detect_device(cores=2).key
    assert detect_device(cores=2).key != detect_device(cores=1).key


def test_llvm_knows_all_features_in_mattr() -> None:
    known = {str(name) for name in tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures")()}
    if "avx512f" in known:  # LLVM names what this kind of processor might have, not only what it has
        assert {one.name for one in instruction_sets("x86_64")} <= known
    for one in instruction_sets("aarch64"):
        facts = {"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": "generic", "mattr": [f"+{one.name}"]}
        assert target_has_features(one.name, tvm.target.Target(facts)), one


@pytest.mark.parametrize("name", MACHINES)
def test_a_devices_features_are_the_instructions_it_executes(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = MACHINES[name]
    machine.stand_in(monkeypatch, tmp_path)
    device = detect_device()
    assert device.mcpu == machine.mcpu
    assert device.features == tuple(machine.features.split())
    assert device.vector_bytes == machine.vector_bytes
    assert device.speeds.registers == machine.registers
    assert json.loads(device.target).get("mattr", []) == list(machine.mattr)
    offered = [one.name for one in INTRINSICS if set(one.features) <= set(device.features)]
    assert offered == list(machine.intrinsics)


@pytest.mark.parametrize("name", MACHINES)
def test_a_target_has_no_feature_that_the_machine_lacks(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    machine = MACHINES[name]
    machine.stand_in(monkeypatch, tmp_path)
    target = parse_target(detect_device().target)
    known = {one.name for one in instruction_sets(machine.architecture)}
    assert {str(one) for one in llvm_get_cpu_features(target)} & known <= set(machine.llvm.split())


def test_a_device_whose_kernel_refuses_amx_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    machine = MACHINES["sapphire-rapids"]
    machine.stand_in(monkeypatch, tmp_path)
    before = detect_device()

    def refuse() -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(compiler.target, "request_tiles", refuse)
    device = detect_device()
    assert set(before.features) - set(device.features) == {"amx_bf16", "amx_int8", "amx_tile"}
    assert "-amx-tile" in json.loads(device.target)["mattr"]
    assert "Linux doesn't let this process use AMX (Invalid argument)" in caplog.text
    assert detect_device(without=("amx_tile",)).key == device.key


def test_a_container_has_the_allowed_number_of_cores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ZEN4.stand_in(monkeypatch, tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5, 9})
    device = detect_device()
    assert (device.cores, json.loads(device.target)["num-cores"]) == (3, 3)
    assert device.features == tuple(ZEN4.features.split())


@pytest.mark.parametrize("name", ["neon", "dotprod", "i8mm", "sve", "sve2"])
def test_an_arm_machines_features_are_read_from_its_hwcap_bits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bits are this machine's also in an emulator, where /proc/cpuinfo is another machine's."""
    numbers = {"neon": (16, 1), "dotprod": (16, 20), "sve": (16, 22), "sve2": (26, 1), "i8mm": (26, 13)}
    kind, bit = numbers[name]
    bits = {16: 0, 26: 0} | {kind: 1 << bit}
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    library = SimpleNamespace(getauxval=lambda kind: bits[kind])
    monkeypatch.setattr(ctypes, "CDLL", lambda _: library)
    assert [known for known, there in compiler.target._host_features().items() if there] == [name]


@pytest.mark.parametrize(
    ("without", "left", "vector_bytes", "mattr"),
    [
        (EMULATED_CLASSES["avx512"], f"{AVX2} {AVX512}", 64, []),
        (EMULATED_CLASSES["avx2"], AVX2, 32, ["-avx512f"]),
        (EMULATED_CLASSES["sse4.2"], SSE, 16, ["-avx"]),
        (("avx512_vnni",), AVX512, 64, ["-avx512vnni"]),
        (("avx512vnni",), AVX512, 64, ["-avx512vnni"]),
        (("avx2",), "avx fma f16c", 16, ["-avx2"]),
        (("fma",), "avx avx2", 32, ["-fma"]),
        (("avx512vl", "avx512f", "avx2"), "avx fma f16c", 16, ["-avx2"]),
        (("sse4_2",), "sse4.1 ssse3", 16, ["-sse4.2"]),
    ],
)
def test_disabling_a_feature_disables_dependent_features(
    without: tuple[str, ...],
    left: str,
    vector_bytes: int,
    mattr: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    ZEN4.stand_in(monkeypatch, tmp_path)
    device = detect_device(2, without=without)
    assert json.loads(device.target).get("mattr", []) == mattr
    assert device.vector_bytes == vector_bytes
    gone = {one.name for one in instruction_sets("x86_64") if one.name in without or one.word in without}
    has = {str(one) for one in llvm_get_cpu_features(parse_target(device.target))}
    assert set(left.split()) - gone <= has
    assert not gone & has
    words = {one.word: one.name for one in instruction_sets("x86_64")}
    assert {words[word] for word in device.features} <= has
    assert (device.key == detect_device(2).key) == (not without)


def test_without_avx512_there_are_no_avx512_dot_products_and_registers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ZEN4.stand_in(monkeypatch, tmp_path)
    devices = {name: detect_device(2, without) for name, without in EMULATED_CLASSES.items()}
    assert {name: device.speeds.registers for name, device in devices.items()} == {
        "avx512": 32,
        "avx2": 16,
        "sse4.2": 16,
    }
    assert "avx512_vnni" in devices["avx512"].features
    assert "avx512_vnni" not in devices["avx2"].features
    fused = {name: device.speeds.issue("float32") for name, device in devices.items()}
    assert fused["sse4.2"] < fused["avx2"]
    assert len({device.key for device in devices.values()}) == 3


def test_the_dot_product_of_an_arm_device_can_be_disabled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    MACHINES["neoverse-v1"].stand_in(monkeypatch, tmp_path)
    device = detect_device(2, without=("asimddp", "sve"))
    assert "asimddp" not in device.features
    assert not any(word.startswith("sve") for word in device.features)
    assert json.loads(device.target)["mattr"] == ["-dotprod", "-sve"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("avx99", "'avx99' is no instruction set of x86_64"),
        ("dotprod", "'dotprod' is no instruction set of x86_64"),
        ("avx512f", "this machine has no avx512f to give up"),
        ("amx_tile", "this machine has no amx_tile to give up"),
    ],
)
def test_only_a_present_feature_can_be_disabled(
    name: str, says: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    MACHINES["haswell"].stand_in(monkeypatch, tmp_path)
    with pytest.raises(FeatureError, match=says):
        detect_device(2, without=("avx2", name))


@pytest.mark.parametrize(
    ("name", "widest"),
    [("zen4", "zmm"), ("zen4-without-avx512", "ymm"), ("haswell", "ymm"), ("nehalem", "xmm")],
)
def test_generated_code_uses_the_devices_registers(
    name: str, widest: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with monkeypatch.context() as patch:
        MACHINES[name].stand_in(patch, tmp_path)
        device = detect_device(1)
    a, b = (te.placeholder((1024,), name=name) for name in "ab")
    summed = te.compute(a.shape, lambda i: tirx.exp(a[i]) * b[i], name="product")
    schedule = Schedule(module([a, b, summed]))
    (loop,) = schedule.get_loops(schedule.get_sblock("product"))
    schedule.vectorize(schedule.split(loop, [None, 64])[1])
    library, _ = compile_scheduled(schedule.mod, parse_target(device.target))
    assembly = library.mod.inspect_source("asm")
    assert max(re.findall(r"[xyz]mm", assembly)) == widest


def test_cache_sizes_come_from_linux(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _caches(
        monkeypatch,
        tmp_path,
        [
            ("Data", "1", "48K"),
            ("Instruction", "1", "32K"),
            ("Unified", "2", "2048K"),
            ("Unified", "3", "105M"),
        ],
    )
    device = detect_device()
    assert (device.l1_bytes, device.l2_bytes, device.l3_bytes) == (48 << 10, 2 << 20, 105 << 20)


def test_caches_are_small_where_linux_reports_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _caches(monkeypatch, tmp_path, [("Unified", "2", "unknown"), ("Data", "1", "")])
    device = detect_device()
    assert (device.l1_bytes, device.l2_bytes, device.l3_bytes) == (32 << 10, 512 << 10, 2 << 20)


def _caches(monkeypatch: pytest.MonkeyPatch, folder: Path, caches: list[tuple[str, ...]]) -> None:
    """Have Linux report these caches: (type, level, size)."""
    for number, facts in enumerate(caches):
        cache = folder / compiler.target.CACHES / f"index{number}"
        cache.mkdir(parents=True)
        for name, value in zip(("type", "level", "size"), facts, strict=True):
            (cache / name).write_text(f"{value}\n")
    monkeypatch.setattr(compiler.target, "ROOT", folder)


def test_a_machine_without_these_files_is_detected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    known = detect_device()
    monkeypatch.setattr(compiler.target, "ROOT", tmp_path / "nowhere")
    assert detect_device().vector_bytes == known.vector_bytes
    assert detect_device().target == known.target


@pytest.mark.parametrize(
    "text", ["", "llvm", "{}", "[]", "null", '{"kind":"abacus"}', '{"kind":"llvm","legs":4}']
)
def test_an_unknown_target_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a target that TVM knows"):
        parse_target(text)
