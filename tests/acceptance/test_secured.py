"""`tunefarm up` over mutual TLS with a token: its own worker connects, and a token can do only what its scope
allows."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import trustme

pytestmark = [pytest.mark.slow_lane(seconds=8), pytest.mark.timeout(300)]


def tunefarm(arguments: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tunefarm", *arguments]
    return subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def result(arguments: Sequence[str], environment: dict[str, str]) -> tuple[int, str, str]:
    process = tunefarm(arguments, environment)
    out, errors = process.communicate()
    return process.returncode, out, errors


@pytest.fixture
def secured(environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    for name in ("server", "client"):
        made = authority.issue_cert("127.0.0.1")
        made.cert_chain_pems[0].write_to_path(tmp_path / f"{name}.pem")
        made.private_key_pem.write_to_path(tmp_path / f"{name}.key")
    files = {
        "TLS_CERT": "server.pem", "TLS_KEY": "server.key", "TLS_CLIENT_CA": "ca.pem",
        "CERT": "client.pem", "KEY": "client.key", "CA": "ca.pem",
    }  # fmt: skip
    settings = {f"TUNEFARM_{name}": str(tmp_path / file) for name, file in files.items()}
    return environment | settings | {"TUNEFARM_TOKEN": "the bootstrap token"}


def test_a_secured_service_works_with_a_valid_token(secured: dict[str, str]) -> None:
    up = tunefarm(["up", "--port", "0", "--grpc-port", "0"], secured)
    assert up.stdout is not None
    try:
        assert "https://127.0.0.1" in up.stdout.readline()
        deadline = time.monotonic() + 120
        while True:
            code, out, errors = result(["workers", "--json"], secured)
            assert code == 0, errors
            if any(worker["state"] == "ready" for worker in json.loads(out)):
                break
            assert time.monotonic() < deadline, "the stack's own worker did not get ready"
        code, reader, errors = result(["token", "create", "--name", "reader", "--scope", "read"], secured)
        assert code == 0, errors
        assert result(["jobs", "--json"], secured | {"TUNEFARM_TOKEN": reader.strip()})[:2] == (0, "[]\n")
        code, _, errors = result(["token", "list"], secured | {"TUNEFARM_TOKEN": reader.strip()})
        assert (code, "lacks the scope admin" in errors) == (5, True)
        without = {name: value for name, value in secured.items() if name != "TUNEFARM_CERT"}
        assert result(["jobs"], without)[0] == 2
        without.pop("TUNEFARM_KEY")
        assert result(["jobs"], without)[0] == 4
    finally:
        up.send_signal(signal.SIGTERM)
        up.communicate(timeout=60)
    assert up.returncode == 0


def test_a_missing_tls_file_is_named(secured: dict[str, str]) -> None:
    for missing, says in (("TUNEFARM_CA", "set TUNEFARM_CA"), ("TUNEFARM_TLS_KEY", "but no key")):
        code, _, errors = result(["up"], {name: value for name, value in secured.items() if name != missing})
        assert (code, says in errors) in ((8, True), (2, True))
        assert len(errors.splitlines()) == 1
