"""A fresh Debian, of this and of another architecture, becomes a worker by the service's own script."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import httpx
import pytest

from tests import arm64, debian
from tests.processes import service, until

OBSTACLE = arm64.obstacle()
pytestmark = [
    pytest.mark.slow_lane(seconds=30),
    pytest.mark.timeout(3600),
    pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE)),
]
PREFIX = "/opt/worker"
WHEELS = "/var/tmp/wheels"
# The device has a package index, and no checkout.
ENVIRONMENT = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": WHEELS, "PIP_NO_COMPILE": "1"}


@pytest.mark.parametrize(
    "machine", ["x86_64", pytest.param("aarch64", marks=pytest.mark.slow_lane(seconds=120))]
)
def test_a_fresh_device_becomes_a_worker(machine: str, tmp_path: Path) -> None:
    try:
        root = debian.make("amd64") if machine == "x86_64" else arm64.bare()
    except debian.Unavailable as error:
        pytest.skip(str(error))
    for left in (PREFIX, WHEELS):
        shutil.rmtree(f"{root}{left}", ignore_errors=True)
    shutil.copytree(debian.wheels(machine, "worker,verify"), f"{root}{WHEELS}")
    with service(tmp_path) as made:
        (root / "install").write_text(httpx.get(f"{made.url}/install", trust_env=False).text)
        flags = ["--prefix", PREFIX, "--name", f"fresh-{machine}", "--no-unit"]
        done = finished(debian.start(root, ["/bin/sh", "/install", *flags], ENVIRONMENT), 1500)
        assert f"start the worker fresh-{machine} with {PREFIX}/start" in done
        board = debian.start(root, [f"{PREFIX}/start"], {"TUNEFARM_WORKER_START_TIMEOUT_S": "600"})
        try:
            until(lambda: board.poll() is not None or made.shown(f"fresh-{machine}"), 300)
            assert board.poll() is None, board.communicate()[0]
            seen = made.shown(f"fresh-{machine}")
            assert (seen["connected"], seen["other_version"]) == (True, False)
            load = "from tunefarm_runtime.library import load_runtime; load_runtime(False)"
            finished(debian.start(root, [f"{PREFIX}/bin/python", "-c", load], ENVIRONMENT), 300)
        finally:
            board.terminate()
            board.communicate(timeout=60)
        # An update downloads only tunefarm from the service again.
        again = finished(debian.start(root, ["/bin/sh", f"{PREFIX}/install", "--update"], ENVIRONMENT), 1500)
        assert "updated to tunefarm" in again
    shutil.rmtree(f"{root}{PREFIX}")


def finished(process: subprocess.Popen[str], timeout_s: float) -> str:
    try:
        output, _ = process.communicate(timeout=timeout_s)
    finally:
        process.kill()
    assert process.returncode == 0, output
    return output
