"""A machine whose processor lacks an instruction of the measuring process."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.acceptance.commands import done, tunefarm

pytestmark = [pytest.mark.slow_lane(seconds=20), pytest.mark.timeout(300)]

# Python runs this file first in every process. Only the measuring process dies, as TVM's code for another
# processor would.
SITECUSTOMIZE = """
import os, signal, sys
if "worker.runner.child" in sys.orig_argv and os.path.exists({broken!r}):
    os.kill(os.getpid(), signal.SIGILL)
"""


@pytest.fixture
def broken(environment: dict[str, str], tmp_path: Path) -> Path:
    """A file: while it exists, no measuring process starts."""
    file = tmp_path / "broken"
    file.touch()
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(SITECUSTOMIZE.format(broken=str(file)))
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), environment["PYTHONPATH"]])
    return file


def test_a_command_with_a_stack_of_its_own_ends_and_says_why(
    model: Path, environment: dict[str, str], tmp_path: Path, broken: Path
) -> None:
    tune, compile_ = ["tune", model, "--trials", 8], ["compile", model]
    for arguments in (tune, compile_):
        process = tunefarm(arguments, environment, tmp_path)
        _, errors = process.communicate()
        assert process.returncode == 8, errors
        last = errors.splitlines()[-1]
        assert last.startswith("tunefarm: worker ")
        assert "can't measure: its check was ended by SIGILL (illegal instruction): leave out" in last
        assert last.endswith(f"(see {tmp_path}/data/logs/worker.log)")
    log = (tmp_path / "data/logs/worker.log").read_text()
    checked = "this device can't measure yet ({} in a row"
    assert [log.count(checked.format(number)) for number in (1, 2)] == [2, 2], "no end was of what was before"
    broken.unlink()
    resumed = tunefarm(tune, environment, tmp_path)
    _, errors = resumed.communicate()
    assert resumed.returncode == 0, errors
    assert "resuming job" in errors


def test_on_a_remote_service_the_job_remains_and_reports_why(
    model: Path, environment: dict[str, str], tmp_path: Path, broken: Path
) -> None:
    up = tunefarm(["up", "--port", 0, "--grpc-port", 0], environment, tmp_path)
    assert up.stdout is not None
    assert up.stderr is not None
    up.stdout.readline()
    tuning = tunefarm(["tune", model, "--trials", 8, "--json"], environment, tmp_path)
    try:
        assert "can't measure: its check was ended by SIGILL" in up.stderr.readline()
        job: dict[str, object] = {}
        while "can't measure" not in str(job.get("message")):
            job = next(iter(listed("jobs", environment, tmp_path)), job)
        assert (job["state"], tuning.poll()) == ("queued", None)
        (worker,) = listed("workers", environment, tmp_path)
        expected = f"waiting for a device: worker {worker['id']} can't measure: {worker['health_error']}"
        assert job["message"] == expected
        shown = done(tunefarm(["workers"], environment, tmp_path))
        assert f"{worker['id']} can't measure: its check was ended by SIGILL" in shown
    finally:
        for process in (tuning, up):
            process.terminate()
            process.communicate(timeout=60)


def listed(what: str, environment: dict[str, str], folder: Path) -> list[dict[str, object]]:
    items: list[dict[str, object]] = json.loads(done(tunefarm([what, "--json"], environment, folder)))
    return items
