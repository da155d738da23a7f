"""Names that point to artifacts: over HTTP and by the command."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from core.exit_code import ExitCode
from system.signing import make_key, read_key
from tunefarm.cli.app import app, run
from tunefarm.client import Client

from .artifacts import artifact, publish
from .conftest import Service, Start, Worker, bearer, on_both_databases

BOOTSTRAP = "the bootstrap token"


@on_both_databases
def test_a_name_is_set_moved_looked_up_and_deleted(service: Service, worker: Worker) -> None:
    worker.call()
    first, second = (publish(service, worker, data, 1e-3) for data in (b"first", b"second"))
    key, path = worker.device.key, "/v1/releases/production"
    nothing = service.http.get(path)
    assert (nothing.status_code, nothing.json()["type"]) == (404, "urn:tunefarm:problem:release-not-found")
    made = service.http.put(path, json={"job": first}).json()
    assert (made["job"], made["version"], made["device_class"]) == (first, 1, key)
    assert service.http.get(f"{path}/artifact").content == b"first"
    tag = service.http.head(f"{path}/artifact", params={"target": key}).headers["etag"]
    same = service.http.get(f"{path}/artifact", headers={"If-None-Match": tag})
    assert (same.status_code, same.headers["tunefarm-version"]) == (304, "1")
    assert service.http.put(path, json={"job": second}).json()["version"] == 2
    assert service.http.get(f"{path}/artifact", headers={"If-None-Match": tag}).content == b"second"
    service.http.put("/v1/releases/canary", json={"job": second})
    listed = service.http.get("/v1/releases").json()["items"]
    assert [(one["name"], one["version"]) for one in listed] == [("canary", 2), ("production", 2)]
    assert service.http.get(path).json() == listed[1]
    assert service.http.delete(path).status_code == 204
    assert service.http.delete(path).status_code == 404
    assert service.http.get(f"{path}/artifact").status_code == 404
    assert service.http.get(f"/v1/jobs/{second}/artifact").content == b"second"


def test_a_released_artifact_is_not_deleted(service: Service, worker: Worker) -> None:
    worker.call()
    job_id = publish(service, worker, b"released", 1e-3)
    service.http.put("/v1/releases/production", json={"job": job_id})
    kept = service.http.delete(f"/v1/jobs/{job_id}")
    assert kept.status_code == 409
    assert "is released as production: move or delete that name first" in kept.json()["detail"]
    service.http.delete("/v1/releases/production")
    assert service.http.delete(f"/v1/jobs/{job_id}").status_code == 204
    # Its version is given to no other artifact.
    following = publish(service, worker, b"next", 1e-3)
    assert service.http.get(f"/v1/jobs/{following}").json()["artifact_version"] == 2


def test_each_device_class_has_its_own(service: Service, worker: Worker) -> None:
    worker.call()
    one = publish(service, worker, b"one", 1e-3)
    service.http.put("/v1/releases/production", json={"job": one})
    other = Worker(service.fleet, id="other", device=replace(worker.device, name="other", cores=7))
    other.call()
    two = publish(service, other, b"two", 1e-3)
    made = service.http.put("/v1/releases/production", json={"job": two}).json()
    assert made["version"] == 1  # the first on that class
    for device, content in ((worker.device, b"one"), (other.device, b"two")):
        answer = service.http.get("/v1/releases/production/artifact", params={"target": device.key})
        assert answer.content == content


def test_only_existing_artifacts_get_a_name(service: Service, worker: Worker) -> None:
    worker.call()
    queued = service.submit()
    answer = service.http.put("/v1/releases/production", json={"job": queued})
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:tunefarm:problem:no-artifact")
    assert service.http.put("/v1/releases/production", json={"job": "nobody"}).status_code == 404
    job_id = publish(service, worker, b"data", 1e-3)
    for name in ("a b", "-a", "a" * 65, "%00", "é", "."):
        assert service.http.put(f"/v1/releases/{name}", json={"job": job_id}).status_code in (404, 405, 422)
    for body in ({}, {"job": ""}, {"job": 3}, {"job": job_id, "more": 1}):
        assert service.http.put("/v1/releases/production", json=body).status_code == 422
    assert service.http.get("/v1/releases").json() == {"items": []}


def test_only_administrators_move_releases_and_each_move_is_audited(start: Start) -> None:
    service = start(token=BOOTSTRAP)
    admin = bearer(BOOTSTRAP)
    asked = {"name": "ci", "scopes": ["read", "submit"]}
    made = service.http.post("/v1/tokens", headers=admin, json=asked).json()
    others = bearer(made["token"])
    assert service.http.get("/v1/releases", headers=others).is_success
    for method in ("PUT", "DELETE"):
        refused = service.http.request(method, "/v1/releases/production", headers=others, json={"job": "x"})
        assert refused.status_code == 403
    service.http.put("/v1/releases/production", headers=admin, json={"job": "x"})
    lines = service.http.get("/v1/audit", headers=admin).json()["items"]
    written = [(line["who"], line["action"], line["outcome"]) for line in lines]
    assert ("bootstrap", "PUT /v1/releases/{name}", "404") in written
    assert (made["id"], "PUT /v1/releases/{name}", "403 scope-missing") in written


def test_the_public_key_is_shown(service: Service, start: Start, tmp_path: Path) -> None:
    answer = service.http.get("/v1/signing-key")
    assert (answer.status_code, answer.json()["type"]) == (404, "urn:tunefarm:problem:no-signing-key")
    make_key(tmp_path / "key.pem")
    signing = start(signing_key=tmp_path / "key.pem")
    with Client(signing.url) as client:
        assert client.signing_key() == read_key(tmp_path / "key.pem").public


def test_a_fetched_bundle_is_signed_to_the_last_file(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_key(tmp_path / "key.pem")
    key = read_key(tmp_path / "key.pem")
    service = start(signing_key=tmp_path / "key.pem")
    monkeypatch.setenv("TUNEFARM_SERVER", service.url)
    worker = Worker(service.fleet)
    worker.call()
    job_id = publish(service, worker, artifact(key=key), 1e-3)
    assert run(app, ["release", "set", "production", job_id]) == ExitCode.OK
    out = tmp_path / "out"
    assert run(app, ["release", "fetch", "production", "--bundle", "--output", str(out)]) == ExitCode.OK
    verify = ["verify", str(out), "--trusted", key.public]
    assert run(app, verify) == ExitCode.OK
    capsys.readouterr()
    files = [file for file in sorted(out.rglob("*")) if file.is_file()]
    assert len(files) > 15

    def says() -> str:
        assert run(app, verify) == ExitCode.BAD_INPUT
        return capsys.readouterr().err

    for file in files:
        content = file.read_bytes()
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]) if content else b"x")
        assert file.name in says()
        file.unlink()
        says()
        file.write_bytes(content)
    for added in ("include/stdio.h", "lib/libm.so.6", "CMakePresets.json", ".hidden"):
        (out / added).touch()
        assert f"{added} isn't signed" in says()
        (out / added).unlink()
    (out / "quantized.onnx").touch()
    assert run(app, verify) == ExitCode.OK
    (out / "include" / "linked").symlink_to(tmp_path)
    assert "linked isn't signed" in says()
    (out / "include" / "linked").unlink()
    (out / "bundle.sig").write_text(key.sign((out / "bundle.json").read_bytes()))
    assert "bundle.json isn't signed by a trusted key" in says()
    # Download only the model into the old bundle's folder: no list of another bundle may remain.
    assert run(app, ["release", "fetch", "production", "--output", str(out)]) == ExitCode.OK
    assert "isn't signed: move it elsewhere" in says()


def test_the_command_names_lists_fetches_and_deletes(
    service: Service,
    worker: Worker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    worker.call()
    monkeypatch.setenv("TUNEFARM_SERVER", service.url)
    job_id = publish(service, worker, artifact(), 1e-3)
    assert run(app, ["release", "set", "production", job_id[:3]]) == ExitCode.OK
    name, key = worker.device.name, worker.device.key
    assert f"production is version 1 of relu on {name}\n" in capsys.readouterr().out
    assert run(app, ["release", "list"]) == ExitCode.OK
    shown = capsys.readouterr().out
    assert "production" in shown
    assert (name in shown, key in shown) == (True, False)
    assert run(app, ["release", "list", "--json"]) == ExitCode.OK
    (listed,) = json.loads(capsys.readouterr().out)
    assert (listed["name"], listed["job"], listed["latency_s"]) == ("production", job_id, 1e-3)
    fetched = ["release", "fetch", "production", "--bundle", "--output", str(tmp_path / "out")]
    assert run(app, fetched) == ExitCode.OK
    assert {"model.so", "manifest.json", "main.c", "lib"} <= {
        one.name for one in (tmp_path / "out").iterdir()
    }
    with Client(service.url) as client:
        etag = client.download_release("production", tmp_path / "a.tar")
        assert (tmp_path / "a.tar").read_bytes() == artifact()
        assert client.download_release("production", tmp_path / "a.tar", etag=etag) is None
    assert run(app, ["release", "delete", "production"]) == ExitCode.OK
    assert run(app, ["release", "delete", "production"]) == ExitCode.REFUSED
    assert f"No artifact of device class {worker.device.title} is named" in capsys.readouterr().err
    subjects = [line["subject"] for line in service.http.get("/v1/audit").json()["items"]]
    assert f"production on {worker.device.title}" in subjects
