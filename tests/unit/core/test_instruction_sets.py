"""The names of instruction sets, and how to disable some on a device."""

from __future__ import annotations

import pytest

from core.instruction_sets import FeatureError, disabled_features, instruction_sets, llvm_names
from search.sketches.intrinsics import INTRINSICS


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("-avx512f", ("avx512f",)),
        ("-avx512f,-avx2", ("avx512f", "avx2")),
        (" -avx512_vnni , -AVX512VNNI,-avx512_vnni", ("avx512_vnni", "avx512vnni")),
    ],
)
def test_names_are_read(text: str, names: tuple[str, ...]) -> None:
    assert disabled_features(text, "x86_64") == names


@pytest.mark.parametrize("text", ["avx2", "+avx2", "-", ",", "-avx2,", "-avx2 -fma", "-avx2,fma"])
def test_only_disabled_features_are_accepted(text: str) -> None:
    with pytest.raises(FeatureError):
        disabled_features(text, "x86_64")


@pytest.mark.parametrize(
    ("name", "arch"),
    [
        ("avx99", "x86_64"),
        ("sse2", "x86_64"),
        ("aes", "x86_64"),
        ("dotprod", "x86_64"),
        ("avx2", "aarch64"),
        ("neon", "aarch64"),
        ("asimd", "aarch64"),
        ("vector", "riscv64"),
    ],
)
def test_an_unknown_instruction_set_is_named(name: str, arch: str) -> None:
    with pytest.raises(FeatureError, match=f"'{name}' is no instruction set of {arch}"):
        disabled_features(f"-{name}", arch)


@pytest.mark.parametrize(
    ("spelling", "arch", "names"),
    [
        ("sse4_2", "x86_64", ("sse4.2",)),
        ("sse4.2", "x86_64", ("sse4.2",)),
        ("AVX512_VNNI", "x86_64", ("avx512vnni",)),
        ("abm", "x86_64", ("lzcnt",)),
        ("egpr", "x86_64", ("egpr",)),
        ("asimddp", "aarch64", ("dotprod",)),
        ("dotprod", "aarch64", ("dotprod",)),
    ],
)
def test_linux_and_llvm_spellings_name_the_same_instruction_set(
    spelling: str, arch: str, names: tuple[str, ...]
) -> None:
    assert llvm_names(spelling, arch) == names


def test_one_name_may_stand_for_several_llvm_features() -> None:
    assert {"egpr", "ndd", "nf"} < set(llvm_names("apx", "x86_64"))


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_names_of_instruction_sets_are_unique(arch: str) -> None:
    known = instruction_sets(arch)
    assert len({one.name for one in known}) == len(known)


def test_instruction_sets_of_intrinsics_have_names() -> None:
    words = {one.word for arch in ("x86_64", "aarch64") for one in instruction_sets(arch)}
    assert {word for intrinsic in INTRINSICS for word in intrinsic.features} <= words
