from __future__ import annotations

import io
import tarfile

import pytest

from compiler.packaging.archive import pack
from server.fleet.uploaded_library import rejection_reason
from tests.shared_libraries import AARCH64, shared_library

LIBRARY, MANIFEST = ("candidate.so", shared_library()), ("manifest.json", b"{}")
EXECUTABLE = shared_library()[:16] + b"\2" + shared_library()[17:]


@pytest.mark.parametrize(("number", "platform"), [(62, "x86_64"), (AARCH64, "aarch64")])
def test_a_packed_library_for_the_machine_is_accepted(number: int, platform: str) -> None:
    packed = pack([("candidate.so", shared_library(machine=number)), MANIFEST])
    assert rejection_reason(packed, platform) == ""


def other_tar(**fields: object) -> bytes:
    """Return an archive whose first header differs from what `pack` writes."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in (LIBRARY, MANIFEST):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            if name == LIBRARY[0]:
                for field, value in fields.items():
                    setattr(entry, field, value)
            tar.addfile(entry, io.BytesIO(data))
    return made.getvalue()


NOT_SUCH = "no archive of candidate.so and manifest.json"


@pytest.mark.parametrize(
    ("packed", "says"),
    [
        (b"", NOT_SUCH),
        (shared_library(), NOT_SUCH),
        (pack([MANIFEST, LIBRARY]), NOT_SUCH),
        (pack([LIBRARY]), NOT_SUCH),
        (pack([LIBRARY, MANIFEST])[:520], NOT_SUCH),
        # Readers may find a library other than the first.
        (pack([LIBRARY, MANIFEST, ("candidate.so", shared_library(["system"]))]), NOT_SUCH),
        (pack([LIBRARY, MANIFEST]) + pack([("candidate.so", shared_library(["system"]))]), NOT_SUCH),
        (other_tar(type=tarfile.GNUTYPE_SPARSE), NOT_SUCH),
        (other_tar(mtime=1), NOT_SUCH),
        (other_tar(linkname="other.so"), NOT_SUCH),
        (pack([("candidate.so", b"MZ" + bytes(64)), MANIFEST]), "64-bit machine"),
        (pack([("candidate.so", b"\x7fELF\x01" + shared_library()[5:]), MANIFEST]), "64-bit machine"),
        (pack([("candidate.so", shared_library(machine=AARCH64)), MANIFEST]), "for x86_64"),
        (
            pack([("candidate.so", shared_library()[:16] + b"\2" + shared_library()[17:]), MANIFEST]),
            "for x86_64",
        ),
        (pack([("candidate.so", shared_library(["expf", "system"])), MANIFEST]), "program needs: system"),
        (pack([("candidate.so", shared_library()[:100]), MANIFEST]), "can't be read"),
    ],
)
def test_a_library_that_the_device_must_not_load_is_rejected(packed: bytes, says: str) -> None:
    assert says in rejection_reason(packed, "x86_64")


def test_every_library_for_an_unknown_machine_is_rejected() -> None:
    packed = pack([("candidate.so", shared_library(machine=243)), MANIFEST])
    assert "for riscv64" in rejection_reason(packed, "riscv64")
