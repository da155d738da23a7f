"""The images of deploy/Dockerfile, built without Docker: their containers pass the composition's health
checks and tune a model together."""

from __future__ import annotations

import os
import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from ruamel.yaml import YAML

from core.job import JobState
from examples.make_models import make
from tests import debian, images
from tests.images import Container, Image
from tests.processes import CHECKOUT
from tests.services import Postgresql, Redis, free_port
from tunefarm.client.client import Client
from tunefarm.client.values import JobRequest

OBSTACLE = images.obstacle()
pytestmark = [
    pytest.mark.slow_lane(seconds=140),
    pytest.mark.timeout(1800),
    pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE)),
]
ROLES = ("server", "scheduler", "worker")
TOKEN = "bootstrap-token-with-every-right"
USER = 10001


class Composition:
    """Containers by role, which stop with the composition."""

    def __init__(self, made: dict[str, Image], folder: Path, settings: dict[str, str]) -> None:
        self.images = made
        self.folder = folder
        self.http, self.grpc = str(free_port()), str(free_port())
        self.services: Any = YAML(typ="safe").load(CHECKOUT / "docker-compose.yml")["services"]
        self.given = {
            "server": {**settings, "TUNEFARM_PORT": self.http, "TUNEFARM_GRPC_PORT": self.grpc},
            "scheduler": settings,
            "worker": {"TUNEFARM_WORKER_SERVER": f"127.0.0.1:{self.grpc}"},
        }
        self.running: dict[str, Container] = {}

    def start(self, role: str) -> None:
        """Start a role's container; returns when it is healthy."""
        service = self.services[role]
        fixed = {name: value for name, value in service["environment"].items() if "$" not in value}
        (volume,) = (text.partition(":")[2] for text in service["volumes"])
        folder = self.folder / role
        folder.mkdir()
        os.chown(folder, USER, USER)
        environment = {**fixed, "TUNEFARM_TOKEN": TOKEN, "TUNEFARM_WORKER_TOKEN": TOKEN, **self.given[role]}
        container = self.images[role].start((), environment, {volume: folder})
        self.running[role] = container
        check = [word.replace("8760", self.http) for word in service["healthcheck"]["test"]]
        self.until(lambda: container.succeeds(check))

    def until(self, true: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 300
        while not true():
            for role, container in self.running.items():
                if container.process.poll() is not None:
                    pytest.fail(f"{role} ended: {container.stop()[1]}")
            assert time.monotonic() < deadline, self.stop()
            time.sleep(0.5)

    def stop(self) -> dict[str, tuple[int, str]]:
        running, self.running = self.running, {}
        return {role: container.stop() for role, container in reversed(running.items())}


@pytest.fixture
def composition(postgresql: Postgresql, redis_server: Redis, tmp_path: Path) -> Iterator[Composition]:
    try:
        made = images.build(CHECKOUT / "deploy/Dockerfile", CHECKOUT, ROLES, tmp_path)
    except debian.Unavailable as error:
        pytest.skip(str(error))
    postgresql.create("images")
    settings = {
        "TUNEFARM_DATABASE_URL": postgresql.tcp_url("images"),
        "TUNEFARM_BROKER": redis_server.url,
    }
    volumes = tmp_path / "volumes"
    volumes.mkdir()
    composition = Composition(made, volumes, settings)
    yield composition
    composition.stop()


def test_the_images_are_built_and_tune_a_model(composition: Composition, tmp_path: Path) -> None:
    for role in ROLES:
        composition.start(role)
    model = tmp_path / "tiny.onnx"
    onnx.save(make("resnet18", tiny=True), model)
    with Client(f"http://127.0.0.1:{composition.http}", TOKEN) as client:
        composition.until(lambda: [worker.state for worker in client.workers()] == ["ready"])
        job = client.submit(JobRequest(client.upload(model).sha256, trials=2))
        composition.until(lambda: client.job(job.id).state.finished)
        assert client.job(job.id).state == JobState.DONE, client.job(job.id)
        client.download(job.id, tmp_path / "tuned.tar")
        client.download(job.id, tmp_path / "bundle.tar", bundle=True)
    with tarfile.open(tmp_path / "bundle.tar", ignore_zeros=True) as bundle:
        assert {"model.so", "tunefarm.h", "lib/libtvm_runtime.so"} <= {*bundle.getnames()}
    kept = "opt/tunefarm/lib/python3*/site-packages/tunefarm_runtime/lib/aarch64/libtvm_ffi.so"
    assert list(composition.images["server"].root.glob(kept)), "it bundles for boards, too"
    ended = composition.stop()
    assert {code for code, _ in ended.values()} == {0}, ended
    assert not any("Traceback" in said for _, said in ended.values()), ended
