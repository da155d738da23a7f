from __future__ import annotations

from pathlib import Path

from sandbox.kinds import COMMON_DEVICES, KINDS, ChildKind

SECURITY = Path(__file__).parents[3] / "docs" / "security.md"


def row(kind: ChildKind) -> str:
    common = sorted(name for name in kind.devices if name in COMMON_DEVICES)
    others = sorted(name for name in kind.devices if name not in COMMON_DEVICES)
    assert common == sorted(COMMON_DEVICES)
    devices = ", ".join(["the same", *others] if others else common).replace("*", "\\*")
    return f"| {kind.name} | {devices} | {', '.join(kind.groups)} |".replace("|  |", "| |")


def test_the_document_lists_the_devices_and_groups_of_each_kind_of_child() -> None:
    lines = SECURITY.read_text().splitlines()
    head = lines.index("| child | nodes in `/dev` | groups |")
    assert lines[head + 2 : head + 2 + len(KINDS) + 1] == [*map(row, KINDS), ""]
