"""`tunefarm show` prints loops, before and after they are scheduled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from compiler.workload import normalise, to_json
from core.exit_code import ExitCode
from tests.integration.tunefarm.products import TARGET, TRACE, matmul
from tests.unit.tunefarm.fake_service import FakeService, serving
from tunefarm.cli.app import app, run
from tunefarm.client.values import Schedule


def test_the_best_and_the_naive_program_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    best = Schedule("abc", "cafe", TRACE, 1e-3, (1e-3, 1e-3), TARGET, noise=0.02)
    classes = [{"key": "cafe", "name": "a board", "cores": 4, "vector_bytes": 16}]
    fake = FakeService(best=best, device_classes=classes, module_json=to_json(normalise(matmul())))
    with serving(fake) as service:
        texts = []
        for flags in ([], ["--naive"]):
            assert run(app, ["show", "abc", "--server", service.url, *flags]) == ExitCode.OK
            texts.append(capsys.readouterr().out)
    shown, naive = texts
    assert shown.startswith("# 1 ms, varying by 2% on a board\n")
    assert naive.startswith("# as imported")

    noisy = replace(best, noise=12.72)
    with serving(FakeService(best=noisy, module_json=to_json(normalise(matmul())))) as service:
        assert run(app, ["show", "abc", "--server", service.url]) == ExitCode.OK
    assert ", varying by 1272% (noisy: the device was disturbed) on" in capsys.readouterr().out
    assert ("T.grid(8, 4, 8, 16)" in shown, "T.grid(32, 8, 16)" in naive) == (True, True)
