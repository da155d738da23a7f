"""The deployment examples, in C++ and with curl, download a model from a real server only once."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from records import devices

from .conftest import Start, Worker
from .test_artifacts import publish

FOLDER = Path(__file__).parents[3] / "examples" / "deploy"


@pytest.fixture(params=["curl", "C++"])
def program(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "curl":
        if shutil.which("curl") is None:
            pytest.skip("curl is not installed: apt-get install curl")
        return FOLDER / "fetch.sh"
    if shutil.which("g++") is None or shutil.which("curl-config") is None:
        pytest.skip("a compiler or libcurl is not installed: apt-get install g++ libcurl4-openssl-dev")
    made = tmp_path / "fetch"
    strict = ("-std=c++17", "-Wall", "-Wextra", "-Werror")
    subprocess.run(["g++", *strict, FOLDER / "fetch.cpp", "-lcurl", "-o", made], check=True)
    return made


def test_a_faster_model_is_fetched(start: Start, program: Path, tmp_path: Path) -> None:
    service = start(token="s3cret")
    service.http.headers["Authorization"] = "Bearer s3cret"
    worker = Worker(service.fleet)
    with service.database.begin() as session:
        devices.put_class(session, worker.device)
    model, file = service.upload(), tmp_path / "model.tar"

    def fetch(*words: str, token: str = "s3cret") -> subprocess.CompletedProcess[str]:
        command: Sequence[str | Path] = [program, service.url, *words]
        environment = os.environ | {"TUNEFARM_TOKEN": token, "no_proxy": "*"}
        return subprocess.run(command, capture_output=True, text=True, env=environment)

    asked = (model, worker.device.name, str(file))
    early = fetch(*asked)
    assert (early.returncode, "no-artifact" in early.stderr, file.exists()) == (1, True, False)
    for data in (b"fast", b"faster"):
        publish(service, worker, data, 1e-3)
        assert fetch(*asked).stdout == f"{file} is new\n"
        assert file.read_bytes() == data
        assert fetch(*asked).stdout == f"{file} is the fastest still\n"
        assert file.read_bytes() == data
    refused = fetch(*asked, token="wrong")
    assert (refused.returncode, "token-needed" in refused.stderr) == (1, True)
    assert file.read_bytes() == b"faster"
    assert fetch(model).returncode == 2
