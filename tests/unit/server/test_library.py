from __future__ import annotations

import struct

import pytest

from compiler.packaging.archive import pack
from server.fleet.library import rejection_reason


def elf(machine: int = 62, kind: int = 3, start: bytes = b"\x7fELF\x02\x01\x01") -> bytes:
    return start.ljust(16, b"\0") + struct.pack("<HH", kind, machine) + bytes(40)


@pytest.mark.parametrize(("number", "machine"), [(62, "x86_64"), (183, "aarch64")])
def test_a_packed_library_for_the_machine_is_accepted(number: int, machine: str) -> None:
    packed = pack([("candidate.so", elf(number)), ("manifest.json", b"{}")])
    assert rejection_reason(packed, machine) == ""


@pytest.mark.parametrize(
    ("packed", "says"),
    [
        (b"", "no shared library for a 64-bit machine"),
        (elf(), "no shared library for a 64-bit machine"),
        (pack([("manifest.json", b"{}"), ("candidate.so", elf())]), "64-bit machine"),
        (pack([("candidate.so", b"MZ" + bytes(64))]), "64-bit machine"),
        (pack([("candidate.so", elf(start=b"\x7fELF\x01\x01\x01"))]), "64-bit machine"),
        (pack([("candidate.so", elf(183))]), "for x86_64"),
        (pack([("candidate.so", elf(kind=2))]), "for x86_64"),
        (pack([("candidate.so", elf())])[:520], "64-bit machine"),
    ],
)
def test_a_library_that_the_device_could_not_load_is_rejected(packed: bytes, says: str) -> None:
    assert says in rejection_reason(packed, "x86_64")


def test_every_library_for_an_unknown_machine_is_rejected() -> None:
    assert "for riscv64" in rejection_reason(pack([("candidate.so", elf(243))]), "riscv64")
