"""Candidates are compiled, linked, packed, loaded and measured here, or linked for another architecture."""

from __future__ import annotations

import gc
import importlib.util
import json
import platform
from dataclasses import replace
from pathlib import Path

import pytest

from compiler.constants.packing import PackedConstants
from compiler.measuring.builder import BuiltKernel, LocalBuilder, check_export
from compiler.measuring.runner import LocalRunner
from compiler.packaging import archive
from compiler.packaging.elf import elf_arch
from compiler.packaging.library import LIBRARY, MANIFEST, KernelLibrary, LibraryError
from compiler.packaging.linker import LinkerError
from compiler.target import detect_device
from compiler.workload import to_json
from core.measurement import Measurement, Outcome
from tests.packing import packed_everywhere, with_constants
from tests.workloads import matmul

THIS = platform.machine()
OTHER = "aarch64" if THIS == "x86_64" else "x86_64"
DEVICE = detect_device(1)
BUILDER = LocalBuilder(DEVICE.target)
# The trace that leaves a workload unchanged.
UNTOUCHED = "[[],[]]"
PACKED = PackedConstants((1,), ((4, 8), (2,)), ("float32", "int8"))


@pytest.fixture(scope="module")
def runner() -> LocalRunner:
    return LocalRunner(DEVICE.target)


@pytest.fixture(scope="module")
def exported() -> KernelLibrary:
    library = BUILDER.export(to_json(matmul(8, 8, 8)), UNTOUCHED)
    assert isinstance(library, KernelLibrary), library
    return library


def test_an_exported_candidate_is_loaded_verified_and_timed(
    runner: LocalRunner, exported: KernelLibrary
) -> None:
    built = runner.load(exported.pack())
    assert isinstance(built, BuiltKernel), built
    assert built.build_s == exported.build_s > 0.0
    measurement = runner.run(built, to_json(matmul(8, 8, 8)), ())
    assert measurement.outcome is Outcome.OK, measurement.error
    assert measurement.build_s == exported.build_s


def test_a_loaded_candidate_checks_its_arguments(runner: LocalRunner, exported: KernelLibrary) -> None:
    """It comes from another machine. Code built in the process that runs it needs no checks."""
    built = runner.load(exported.pack())
    assert isinstance(built, BuiltKernel)
    measurement = runner.run(built, to_json(matmul(8, 8, 16)), ())
    assert measurement.outcome is Outcome.RUN_ERROR
    assert "Mismatched" in measurement.error


def test_a_loaded_candidate_packs_before_it_is_timed(runner: LocalRunner) -> None:
    workload = with_constants(matmul(8, 32, 16), (1,))
    trace = packed_everywhere(workload, 8)
    assert trace is not None
    library = BUILDER.export(to_json(workload), trace)
    assert isinstance(library, KernelLibrary), library
    assert library.packed_constants is not None
    assert (library.packed_constants.operands, library.packed_constants.dtypes) == ((1,), ("float32",))
    built = runner.load(library.pack())
    assert isinstance(built, BuiltKernel), built
    measurement = runner.run(built, to_json(workload), (1,))
    assert measurement.outcome is Outcome.OK, measurement.error


def test_a_library_is_unloaded_with_the_candidate(runner: LocalRunner, exported: KernelLibrary) -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count(f"/{LIBRARY}")

    before = mapped()
    built = runner.load(exported.pack())
    assert isinstance(built, BuiltKernel), built
    assert runner.run(built, to_json(matmul(8, 8, 8)), ()).outcome is Outcome.OK
    assert mapped() > before
    del built
    gc.collect()
    assert mapped() == before


def test_several_candidates_are_loaded_at_once(runner: LocalRunner) -> None:
    sizes = (4, 8, 12)
    loaded = []
    for size in sizes:
        library = BUILDER.export(to_json(matmul(size, size, size)), UNTOUCHED)
        assert isinstance(library, KernelLibrary)
        loaded.append(runner.load(library.pack()))
    for size, built in zip(sizes, loaded, strict=True):
        assert isinstance(built, BuiltKernel)
        assert runner.run(built, to_json(matmul(size, size, size)), ()).outcome is Outcome.OK


def test_a_wrong_trace_is_a_build_error() -> None:
    refused = BUILDER.export(to_json(matmul(8, 8, 8)), "nonsense")
    assert isinstance(refused, Measurement)
    assert (refused.outcome, bool(refused.error)) == (Outcome.BUILD_ERROR, True)


def test_without_a_linker_the_failure_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PATH", "/nowhere"), ("CC", ""), ("CXX", "")):
        monkeypatch.setenv(name, value)
    refused = BUILDER.export(to_json(matmul(8, 8, 8)), UNTOUCHED)
    assert isinstance(refused, Measurement)
    assert "install gcc or clang" in refused.error
    with pytest.raises(LinkerError, match="install gcc or clang"):
        check_export(THIS)


@pytest.mark.slow_lane
@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="the extra 'cross' is not installed")
def test_a_library_for_another_machine_is_linked_and_refused_here(runner: LocalRunner) -> None:
    target = json.loads(DEVICE.target) | {"mtriple": f"{OTHER}-linux-gnu", "mcpu": "generic"}
    target.pop("mattr", None)
    check_export(OTHER)
    library = LocalBuilder(json.dumps(target)).export(to_json(matmul(8, 8, 8)), UNTOUCHED)
    assert isinstance(library, KernelLibrary), library
    assert elf_arch(library.data) == OTHER
    refused = runner.load(library.pack())
    assert isinstance(refused, Measurement)
    assert refused.error == f"the library is for {OTHER}, not {THIS}"


def test_packing_changes_nothing(exported: KernelLibrary) -> None:
    for library in (exported, replace(exported, packed_constants=PACKED)):
        assert KernelLibrary.unpack(library.pack()) == library


def test_the_library_is_the_first_file(exported: KernelLibrary) -> None:
    assert exported.pack()[512:].startswith(exported.data)


MANIFEST_TEXT = b'{"parts":null,"build_s":0.1}'


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"no archive" * 100,
        archive.pack([(MANIFEST, MANIFEST_TEXT)]),
        archive.pack([(LIBRARY, b"x")]),
        archive.pack([(LIBRARY, b"x"), (MANIFEST, b"{")]),
        archive.pack([(LIBRARY, b"x"), (MANIFEST, b"[]")]),
        archive.pack([(LIBRARY, b"x"), (MANIFEST, b"\xff")]),
        archive.pack([(LIBRARY, b"x"), (MANIFEST, b'{"parts":[],"build_s":1}')]),
        archive.pack([(LIBRARY, b"x"), (MANIFEST, b'{"parts":null,"build_s":"soon"}')]),
        archive.pack([(LIBRARY, b"x"), (MANIFEST, b'{"parts":{"operands":[1]},"build_s":1}')]),
        archive.pack([(LIBRARY, b"x"), (MANIFEST, b"[" * 100_000)]),
    ],
)
def test_other_bytes_are_refused(runner: LocalRunner, packed: bytes) -> None:
    with pytest.raises(LibraryError):
        KernelLibrary.unpack(packed)
    assert isinstance(runner.load(packed), Measurement)


@pytest.mark.parametrize("data", [b"no library", b"\x7fELF\x02\x01" + bytes(64)])
def test_a_library_that_can_not_be_loaded_is_a_build_error(runner: LocalRunner, data: bytes) -> None:
    refused = runner.load(archive.pack([(LIBRARY, data), (MANIFEST, MANIFEST_TEXT)]))
    assert isinstance(refused, Measurement)
    assert refused.outcome is Outcome.BUILD_ERROR
    assert "an unknown architecture" in refused.error
