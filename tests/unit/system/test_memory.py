"""A container's memory is what its control groups allow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from system import memory

GB = 1 << 30
PHYSICAL = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(
    ("own", "limits", "expected"),
    [
        pytest.param("0::/\n", {"memory.max": "536870912\n"}, GB // 2, id="a container"),
        pytest.param("0::/\n", {"memory.max": "max\n"}, PHYSICAL, id="no limit"),
        pytest.param(
            "0::/a/b\n",
            {"memory.max": "max", "a/memory.max": f"{GB // 4}", "a/b/memory.max": f"{GB}"},
            GB // 4,
            id="the group around it allows less",
        ),
        pytest.param("0::/host/name\n", {"memory.max": f"{GB // 2}"}, GB // 2, id="named as on the host"),
        pytest.param(
            "5:cpu:/\n4:memory,hugetlb:/pod\n",
            {
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "memory/pod/memory.limit_in_bytes": f"{GB // 2}",
            },
            GB // 2,
            id="version 1",
        ),
        pytest.param(None, {"memory.max": "1"}, PHYSICAL, id="another system"),
    ],
)
def test_the_smallest_memory_limit_applies(
    own: str | None,
    limits: dict[str, str],
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, text in limits.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text)
    if own is not None:
        (tmp_path / "own").write_text(own)
    monkeypatch.setattr(memory, "CGROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(memory, "OWN_CGROUPS", tmp_path / "own")
    assert memory.usable_memory_bytes() == expected
