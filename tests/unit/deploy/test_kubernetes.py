"""Helm accepts the chart. Its manifests are valid by Kubernetes' schemas, and consistent with images,
settings and each other."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from dockerfile_parse import DockerfileParser
from ruamel.yaml import YAML

from scheduler.settings import SchedulerSettings
from server.access.scopes import OPEN_PATHS
from server.metrics import ServerMetrics
from server.settings import ServerSettings
from system.logs import VARIABLE

CHART = Path(__file__).parents[3] / "deploy" / "helm"
VERSION = "1.36"
# Helm's library starts threads, which a process that forks must not have.
RENDER = """
import json, sys
from helm_python.chart import Chart, lint
chart, values = sys.argv[1], json.loads(sys.argv[2])
report = lint(chart, values, strict=True, kube_version="v1.36.0")
with Chart.load(chart) as loaded:
    files = loaded.render(values, name="tunefarm", namespace="tunefarm")
print(json.dumps({"report": report, "files": files}))
"""


@cache
def rendered(values: str = "{}") -> Any:
    """Return Helm's report about the chart, and the rendered files. Raises CalledProcessError."""
    if find_spec("helm_python") is None:
        pytest.skip("Helm is not installed: pip install helm-python-sdk")
    command = [sys.executable, "-c", RENDER, str(CHART), values]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def manifests(values: str = "{}") -> list[dict[str, Any]]:
    """Return all objects that Helm would apply."""
    yaml = YAML(typ="safe")
    return [one for text in rendered(values)["files"].values() for one in yaml.load_all(text) if one]


def of_kind(*kinds: str) -> list[dict[str, Any]]:
    return [one for one in manifests() if one["kind"] in kinds]


def test_helm_finds_nothing_wrong() -> None:
    report = rendered()["report"]
    assert report["errors"] == []
    assert [one for one in report["messages"] if one["severity"] > 1] == []


def test_kubernetes_accepts_the_chart() -> None:
    kinds = [(one["kind"], one["metadata"]["name"]) for one in manifests()]
    assert len(set(kinds)) == len(kinds) > 7
    for manifest in manifests():
        kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_every_value_has_its_effect() -> None:
    changed = {
        "images": {"server": "registry.example.org/server:2"},
        "secret": "mine",
        "signingSecret": "keys",
        "server": {"replicas": 3, "env": {"TUNEFARM_BLOB_STORE": "s3://models"}, "scratch": "1Gi"},
        "scheduler": {"autoscaling": {"enabled": False}, "resources": {"requests": {"cpu": "2"}}},
        "ingress": {"host": "tunefarm.example.org", "className": "nginx", "tlsSecret": "certificate"},
        "monitoringNamespace": "observing",
    }
    found = manifests(json.dumps(changed))
    for manifest in found:
        kubernetes_validate.validate(manifest, VERSION, strict=True)
    by_kind = {(one["kind"], one["metadata"]["name"]): one for one in found}
    server = by_kind["Deployment", "server"]["spec"]
    (container,) = server["template"]["spec"]["containers"]
    assert (server["replicas"], container["image"]) == (3, "registry.example.org/server:2")
    assert container["envFrom"] == [{"secretRef": {"name": "mine"}}]
    assert {"name": "TUNEFARM_BLOB_STORE", "value": "s3://models"} in container["env"]
    for name in ("server", "scheduler"):
        pod = by_kind["Deployment", name]["spec"]["template"]["spec"]
        (key,) = (one for one in pod["volumes"] if one["name"] == "signing")
        (place,) = (one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "signing")
        assert (key["secret"]["secretName"], place["mountPath"]) == ("keys", "/etc/tunefarm")
        assert {"name": "TUNEFARM_SIGNING_KEY", "value": "/etc/tunefarm/signing.pem"} in pod["containers"][0][
            "env"
        ]
    assert ("HorizontalPodAutoscaler", "scheduler") not in by_kind
    assert by_kind["Ingress", "server"]["spec"]["rules"][0]["host"] == "tunefarm.example.org"
    assert "observing" in json.dumps(by_kind["NetworkPolicy", "scheduler"])


@pytest.mark.parametrize(
    "wrong",
    [{"sever": {}}, {"server": {"replicas": 0}}, {"server": {"env": {"PATH": "/"}}}, {"secret": ""}],
)
def test_a_wrong_value_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(subprocess.CalledProcessError) as failed:
        rendered(json.dumps(wrong))
    assert "schema" in failed.value.stderr


def test_images_are_those_of_the_dockerfile() -> None:
    parser = DockerfileParser(str(CHART.parent / "Dockerfile"))
    built = {line["value"].rpartition(" ")[2] for line in parser.structure if line["instruction"] == "FROM"}
    for workload in of_kind("Deployment", "Job"):
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        assert container["image"].removeprefix("tunefarm-") in built


def test_variables_are_settings() -> None:
    known = {
        f"TUNEFARM_{name}".upper()
        for settings in (ServerSettings, SchedulerSettings)
        for name in settings.model_fields
    }
    for workload in of_kind("Deployment"):
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        assert {variable["name"] for variable in container["env"]} <= known | {VARIABLE}
        assert container["envFrom"] == [{"secretRef": {"name": "tunefarm"}}], (
            "its secrets come from nowhere else"
        )


def test_probes_need_no_token() -> None:
    (server,) = (one for one in of_kind("Deployment") if one["metadata"]["name"] == "server")
    (container,) = server["spec"]["template"]["spec"]["containers"]
    probes = [container[name] for name in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert {probe["httpGet"]["path"] for probe in probes} <= OPEN_PATHS


def test_nothing_scrapes_metrics_without_the_token_that_they_want() -> None:
    scraped = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"].get("annotations", {})
        for one in of_kind("Deployment")
    }
    assert "/metrics" not in OPEN_PATHS
    assert "prometheus.io/scrape" not in scraped["server"]
    assert scraped["scheduler"]["prometheus.io/scrape"] == "true"


def test_selectors_and_ports_name_pods_that_exist() -> None:
    pods: dict[str, set[str]] = {}
    for workload in of_kind("Deployment"):
        template = workload["spec"]["template"]
        (container,) = template["spec"]["containers"]
        name = template["metadata"]["labels"]["app.kubernetes.io/name"]
        pods[name] = {p["name"] for p in container["ports"]}
    for one in of_kind("Deployment", "PodDisruptionBudget"):
        assert one["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"] in pods
    for policy in of_kind("NetworkPolicy"):
        name = policy["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/name"]
        assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} <= pods[name]
    for service in of_kind("Service"):
        name = service["spec"]["selector"]["app.kubernetes.io/name"]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= pods[name]


def test_schedulers_are_scaled_by_a_metric_of_servers() -> None:
    (scaler,) = of_kind("HorizontalPodAutoscaler")
    target = scaler["spec"]["scaleTargetRef"]
    assert target["name"] in {one["metadata"]["name"] for one in of_kind(target["kind"])}
    (metric,) = scaler["spec"]["metrics"]
    name = metric["external"]["metric"]["name"]
    assert name in {family.name for family in ServerMetrics().registry.collect()}
    (rule,) = YAML(typ="safe").load(CHART.parent / "monitoring" / "adapter.yml")["externalRules"]
    assert rule["seriesQuery"] == name


def test_each_deployment_has_a_disruption_budget_that_lets_it_move() -> None:
    deployments = {one["metadata"]["name"]: one["spec"].get("replicas", 1) for one in of_kind("Deployment")}
    budgets = {one["metadata"]["name"]: one["spec"] for one in of_kind("PodDisruptionBudget")}
    assert budgets.keys() == deployments.keys()
    for name, replicas in deployments.items():
        # Otherwise a node could never be drained.
        assert budgets[name].get("maxUnavailable", 0) > 0 or budgets[name]["minAvailable"] < replicas
