"""The manifests are valid by Kubernetes' schemas, and consistent with images, settings and each other."""

from __future__ import annotations

from collections.abc import Iterator
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

FOLDER = Path(__file__).parents[3] / "deploy" / "kubernetes"
VERSION = "1.36"


def manifests() -> Iterator[dict[str, Any]]:
    """Return all objects that kustomize would apply."""
    yaml = YAML(typ="safe")
    for name in yaml.load(FOLDER / "kustomization.yaml")["resources"]:
        yield from yaml.load_all(FOLDER / name)


def of_kind(*kinds: str) -> list[dict[str, Any]]:
    return [one for one in manifests() if one["kind"] in kinds]


@pytest.mark.parametrize(
    "manifest", list(manifests()), ids=lambda one: f"{one['kind']} {one['metadata']['name']}"
)
def test_kubernetes_accepts_it(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_every_file_is_applied() -> None:
    listed = YAML(typ="safe").load(FOLDER / "kustomization.yaml")["resources"]
    assert {path.name for path in FOLDER.glob("*.yaml")} == {*listed, "kustomization.yaml"}


def test_images_are_those_of_the_dockerfile() -> None:
    parser = DockerfileParser(str(FOLDER.parent / "Dockerfile"))
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


def test_probes_ask_what_needs_no_token() -> None:
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
    (rule,) = YAML(typ="safe").load(FOLDER.parent / "monitoring" / "adapter.yml")["externalRules"]
    assert rule["seriesQuery"] == name


def test_each_deployment_has_a_disruption_budget_that_lets_it_move() -> None:
    deployments = {one["metadata"]["name"]: one["spec"].get("replicas", 1) for one in of_kind("Deployment")}
    budgets = {one["metadata"]["name"]: one["spec"] for one in of_kind("PodDisruptionBudget")}
    assert budgets.keys() == deployments.keys()
    for name, replicas in deployments.items():
        # Otherwise a node could never be drained.
        assert budgets[name].get("maxUnavailable", 0) > 0 or budgets[name]["minAvailable"] < replicas
