"""A real Prometheus, configured as in deploy/monitoring, scrapes a tuning service. All metrics of the Grafana
board, the alert rules and the scaling rule exist."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from onnx import TensorProto, helper
from ruamel.yaml import YAML

from records.schedules import cost_models
from records.schedules.cost_models import Version
from records.storage.database import Database
from tests.processes import until
from tests.services import free_port

pytestmark = [pytest.mark.slow_lane(seconds=22), pytest.mark.timeout(300)]

DEPLOY = Path(__file__).parents[2] / "deploy"
MONITORING = DEPLOY / "monitoring"
TOKEN = "the bootstrap token"
# Metrics that exist only after a failure.
OF_TROUBLE = re.compile(r'status=~"5\.\."|outcome!="ok"')
# Virtual machines have no thermometer.
MAY_LACK = {"max by (worker) (tunefarm_worker_temperature_celsius)"}


@dataclass(frozen=True)
class Prometheus:
    url: str
    since: float

    def ask(self, path: str, **parameters: object) -> Any:
        given = {name: str(value) for name, value in parameters.items()}
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=given, trust_env=False, verify=False)
        assert answer.is_success, (parameters, answer.text)
        return answer.json()["data"]

    def series(self, expression: str) -> list[dict[str, str]]:
        """Return the labels of all series that a panel would draw."""
        now = time.time()
        asked = self.ask("query_range", query=expression, start=self.since, end=now, step=1)
        return [one["metric"] for one in asked["result"]]

    def is_scraping(self) -> bool:
        try:
            is_ready = httpx.get(f"{self.url}/-/ready", trust_env=False, verify=False).is_success
        except httpx.TransportError:
            return False
        return is_ready and {one["health"] for one in self.ask("targets")["activeTargets"]} == {"up"}


@contextmanager
def prometheus(folder: Path, ports: dict[str, int]) -> Iterator[Prometheus]:
    """Run Prometheus with deploy's configuration, except for hosts, token file and intervals."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("Prometheus is not installed: apt-get install prometheus")
    yaml = YAML(typ="safe")
    config = yaml.load(MONITORING / "prometheus.yml")
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    assert {one["job_name"] for one in config["scrape_configs"]} == ports.keys()
    for one in config["scrape_configs"]:
        one["static_configs"] = [{"targets": [f"127.0.0.1:{ports[one['job_name']]}"]}]
        if "authorization" in one:
            one["authorization"]["credentials_file"] = str(folder / "tunefarm.token")
    (folder / "tunefarm.token").write_text(TOKEN)
    shutil.copy(MONITORING / "alerts.yml", folder)
    with (folder / "prometheus.yml").open("w") as file:
        yaml.dump(config, file)
    port = free_port()
    flags = {
        "config.file": folder / "prometheus.yml",
        "storage.tsdb.path": folder / "series",
        "web.listen-address": f"127.0.0.1:{port}",
    }
    with (folder / "prometheus.log").open("w") as log:
        command = [program, *(f"--{name}={value}" for name, value in flags.items())]
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        running = Prometheus(f"http://127.0.0.1:{port}", time.time())
        until(lambda: process.poll() is not None or running.is_scraping(), 60.0)
        assert process.poll() is None, (folder / "prometheus.log").read_text()
        yield running
    finally:
        process.terminate()
        process.wait(30)


def refused_model() -> bytes:
    """A model that is accepted but can't be imported, so a step of its job fails."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    node = helper.make_node("Unheard", ["x"], ["y"], domain="of.nobody")
    graph = helper.make_graph([node], "refused", values[:1], values[1:])
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("of.nobody", 1)]
    model: bytes = helper.make_model(graph, opset_imports=imports).SerializeToString()
    return model


@pytest.fixture
def scraped(model: Path, environment: dict[str, str], tmp_path: Path) -> Iterator[Prometheus]:
    """Prometheus, beside a service that has tuned a model and refused another."""
    ports = {"tunefarm-server": free_port(), "tunefarm-scheduler": free_port()}
    settings = environment | {
        "TUNEFARM_TOKEN": TOKEN,
        "TUNEFARM_METRICS_PORT": str(ports["tunefarm-scheduler"]),
    }

    def tunefarm(*arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tunefarm", *map(str, arguments)]
        return subprocess.Popen(
            command,
            env=settings,
            cwd=tmp_path,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )

    up = tunefarm("up", "--port", ports["tunefarm-server"], "--grpc-port", 0)
    try:
        assert up.stdout is not None
        assert "http://127.0.0.1" in up.stdout.readline()
        with prometheus(tmp_path, ports) as running:
            tuning = tunefarm("tune", model, "--trials", 24, "--json")
            out, errors = tuning.communicate()
            assert tuning.returncode == 0, errors
            store_an_evaluated_model(tmp_path, json.loads(out)["job"]["device_class"])
            (tmp_path / "refused.onnx").write_bytes(refused_model())
            refused = tunefarm("tune", tmp_path / "refused.onnx", "--trials", 4)
            _, errors = refused.communicate()
            assert refused.returncode != 0
            assert "Unheard" in errors
            # A rate needs two scrapes.
            time.sleep(3.0)
            yield running
    finally:
        up.send_signal(signal.SIGTERM)
        up.communicate(timeout=60)


def store_an_evaluated_model(folder: Path, device_class: str) -> None:
    """Store an evaluated cost model, as the scheduler does after hundreds of records."""
    database = Database(f"sqlite:///{next((folder / 'data').rglob('*.db'))}")
    metrics = {"learned": {"records": 9, "r2": 0.8, "pairwise": 0.9, "recall": 0.7}}
    with database.begin() as session:
        now = time.time()
        cost_models.add(session, Version(device_class, 99, now, now, 0.4, metrics), b"trees")
    database.close()


def test_the_monitoring_queries_find_metrics(scraped: Prometheus) -> None:
    assert odd_panels(scraped) == []

    (group,) = scraped.ask("rules")["groups"]
    assert {(rule["health"], rule.get("lastError", "")) for rule in group["rules"]} == {("ok", "")}
    for rule in YAML(typ="safe").load(MONITORING / "alerts.yml")["groups"][0]["rules"]:
        for selector in re.findall(r"\b(?:tunefarm_\w+|up\b)(?:\{[^}]*\})?", rule["expr"]):
            assert scraped.series(OF_TROUBLE.sub("", selector)), (rule["alert"], selector)

    rule, name = scaling()
    assert rule["seriesQuery"] == name
    assert scraped.series(name)
    assert scraped.series(rule["metricsQuery"]) == [{}], "one number"


def odd_panels(scraped: Prometheus) -> list[tuple[str, str, object]]:
    """Return the board's queries that return no series, or series without the labels of their grouping."""
    odd: list[tuple[str, str, object]] = []
    for panel in json.loads((MONITORING / "grafana.json").read_text())["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            assert "$" not in expression, "the board has no variables but its data source"
            grouped = re.search(r"\bby \(([\w, ]+)\)", expression)
            labels = set(re.split(", ?", grouped[1])) - {"le"} if grouped else set()
            found = scraped.series(expression)
            if not found and expression in MAY_LACK:
                continue
            if not found or any(series.keys() != labels for series in found):
                odd.append((panel["title"], expression, found))
    return odd


def scaling() -> tuple[dict[str, Any], str]:
    """Return the adapter's rule, and the name of the metric that Kubernetes scales schedulers by."""
    yaml = YAML(typ="safe")
    (rule,) = yaml.load(MONITORING / "adapter.yml")["externalRules"]
    (name,) = re.findall(r"metric: \{name: (\w+)\}", (DEPLOY / "helm/templates/scheduler.yaml").read_text())
    return rule, name
