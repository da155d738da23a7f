from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence

import pytest

from sandbox.python_packages import TORCH, let_in


def test_the_schedulers_process_keeps_pytorch_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """TVM imports an installed PyTorch. Children that read its files let it in."""
    seen: list[object] = []

    def main(_arguments: Sequence[str]) -> int:
        seen.append(sys.modules[TORCH])
        return 0

    monkeypatch.delitem(sys.modules, TORCH, raising=False)
    monkeypatch.setattr("scheduler.main.main", main)
    try:
        with pytest.raises(SystemExit):
            runpy.run_module("scheduler", run_name="__main__")
    finally:
        let_in(TORCH)
    assert seen == [None]
