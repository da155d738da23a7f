"""`tunefarm up` on a disk that fills up: it reports that, loses nothing, and continues when space is free."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from tests.acceptance.commands import family
from tests.faults.environments import Unsupported, full, small_tmpfs

pytestmark = [pytest.mark.slow_lane(seconds=16), pytest.mark.timeout(300)]

DISK_BYTES = 64 << 20


def until(true: Callable[[], object], errors: Path) -> None:
    deadline = time.monotonic() + 120.0
    while not true():
        assert time.monotonic() < deadline, errors.read_text()[-3000:]
        time.sleep(0.2)


def test_the_stack_recovers_from_a_full_disk(
    model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    errors = tmp_path / "errors"
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(small_tmpfs(tmp_path / "data", DISK_BYTES))
        except Unsupported as missing:
            pytest.skip(str(missing))
        command = [sys.executable, "-m", "tunefarm", "up", "--json", "--port", "0", "--grpc-port", "0"]
        with errors.open("wb") as file:
            up = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=file)
        try:
            assert up.stdout is not None
            stack.callback(up.stdout.close)
            said = b""
            while not said.endswith(b"}\n"):
                said += up.stdout.readline()
            url = json.loads(said)["url"]
            http = stack.enter_context(httpx.Client(base_url=url, trust_env=False, timeout=20))
            stored = http.post("/v1/models", content=model.read_bytes()).raise_for_status().json()
            with full(tmp_path / "data"):
                fill_last_block(tmp_path / "data" / "logs" / "supervisor.log")
                answer = http.post("/v1/models", content=b"\x3a" + bytes([200, 1]) + bytes(200))
                assert (answer.status_code, "full" in answer.json()["detail"]) == (507, True)
                # It can't start on a full disk, and supervision gives up after some tries.
                family(up.pid, "server")[-1].kill()
                time.sleep(20.0)
                assert up.poll() is None, errors.read_text()
            ready = lambda: is_success(http, "/readyz")  # noqa: E731
            until(ready, errors)
            workers = lambda: any(w["state"] == "ready" for w in http.get("/v1/workers").json()["items"])  # noqa: E731
            until(workers, errors)
            job = {"model": stored["sha256"], "trials": 4}
            job_id = http.post("/v1/jobs", json=job).raise_for_status().json()["id"]
            until(lambda: http.get(f"/v1/jobs/{job_id}").json()["finished"], errors)
            assert http.get(f"/v1/jobs/{job_id}").json()["state"] == "done"
        finally:
            up.terminate()
            up.wait(60)


def fill_last_block(log: Path) -> None:
    """Append to a log until its disk refuses. On a full disk, a file's last block still has room."""
    with contextlib.suppress(OSError), log.open("ab", buffering=0) as file:
        while True:
            file.write(b"\n")


def is_success(http: httpx.Client, path: str) -> bool:
    try:
        return http.get(path).is_success
    except httpx.TransportError:
        return False
