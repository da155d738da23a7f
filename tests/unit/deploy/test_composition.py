"""docker-compose.yml and deploy/Dockerfile are valid, and name only what exists."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from dockerfile_parse import DockerfileParser
from pydantic import AliasChoices
from pydantic_settings import BaseSettings
from ruamel.yaml import YAML
from typer.main import get_command

from scheduler.settings import SchedulerSettings
from server.api.health import router as health
from server.settings import ServerSettings
from tunefarm.cli.app import app
from worker.settings import WorkerSettings

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
ROLES: Mapping[str, type[BaseSettings]] = {
    "server": ServerSettings,
    "scheduler": SchedulerSettings,
    "worker": WorkerSettings,
}
INTERPOLATED = re.compile(r"(?<!\$)\$\{(\w+)")


@pytest.fixture(scope="module")
def composition() -> Any:
    with COMPOSE.open() as file:
        return YAML(typ="safe").load(file)


@pytest.fixture(scope="module")
def dockerfile() -> list[Mapping[str, str]]:
    with DOCKERFILE.open("rb") as file:
        steps: list[Mapping[str, str]] = DockerfileParser(fileobj=file).structure
    return [step for step in steps if step["instruction"] != "COMMENT"]


def stages(steps: list[Mapping[str, str]]) -> dict[str, list[Mapping[str, str]]]:
    found: dict[str, list[Mapping[str, str]]] = {}
    for step in steps:
        if step["instruction"] == "FROM":
            found[step["value"].rpartition(" AS ")[2]] = []
        list(found.values())[-1].append(step)
    return found


def values(steps: list[Mapping[str, str]], instruction: str) -> Iterator[str]:
    return (step["value"] for step in steps if step["instruction"] == instruction)


def variables(settings: type[BaseSettings]) -> set[str]:
    """The environment variables that a process reads."""
    prefix = settings.model_config.get("env_prefix", "")
    names = {f"{prefix}{name}".upper() for name in settings.model_fields}
    for field in settings.model_fields.values():
        if isinstance(field.validation_alias, AliasChoices):
            names |= {str(choice) for choice in field.validation_alias.choices}
    return names


def test_the_composition_follows_the_compose_specification(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    assert subprocess.run([*command, COMPOSE], capture_output=True).returncode == 0
    broken = tmp_path / "docker-compose.yml"
    broken.write_text(COMPOSE.read_text().replace("restart:", "restarts:"))
    assert subprocess.run([*command, broken], capture_output=True).returncode == 1


def test_everything_that_has_to_be_set_is_in_the_example_and_has_no_default() -> None:
    example = dict(
        line.split("=", 1)
        for line in (ROOT / ".env.example").read_text().splitlines()
        if line and not line.startswith("#")
    )
    assert set(INTERPOLATED.findall(COMPOSE.read_text())) == set(example)
    secrets = {name for name in example if name != "LISTEN"}
    assert {example[name] for name in secrets} == {""}
    for name in secrets:
        uses = re.findall(rf"\$\{{{name}(.)", COMPOSE.read_text())
        assert set(uses) == {":"}, f"{name} may be empty"
    assert ".env" in (ROOT / ".gitignore").read_text().splitlines()


def test_one_command_makes_the_secrets_once(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    for name in (".env.example", "deploy/make-env.sh"):
        shutil.copy(ROOT / name, tmp_path / name)
    command = ["sh", "deploy/make-env.sh"]
    assert subprocess.run(command, cwd=tmp_path).returncode == 0
    env = tmp_path / ".env"
    made = dict(line.split("=", 1) for line in env.read_text().splitlines() if line and line[0] != "#")
    secrets = {name: value for name, value in made.items() if name != "LISTEN"}
    assert made["LISTEN"] == "127.0.0.1"
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in secrets.values())
    assert len(set(secrets.values())) == len(secrets)
    assert env.stat().st_mode & 0o777 == 0o600
    before = env.read_text()
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (again.returncode, env.read_text()) == (1, before)
    assert "delete an old one to make new secrets" in again.stderr


@pytest.mark.parametrize("role", ROLES)
def test_services_are_given_settings_that_they_have(composition: Any, role: str) -> None:
    given = set(composition["services"][role]["environment"])
    assert given <= variables(ROLES[role])
    required = {
        name
        for name, field in ROLES[role].model_fields.items()
        if field.is_required() and field.validation_alias is None
    }
    prefix = ROLES[role].model_config.get("env_prefix", "")
    assert {f"{prefix}{name}".upper() for name in required} <= given


def test_services_wait_for_what_they_need_and_come_back(composition: Any) -> None:
    services = composition["services"]
    for name, service in services.items():
        assert service["restart"] == "unless-stopped", name
        for needed, how in service.get("depends_on", {}).items():
            assert how == {"condition": "service_healthy"}
            assert "healthcheck" in services[needed]
    paths = re.findall(r"http://127.0.0.1:8760(/\w+)", json.dumps(services["server"]["healthcheck"]))
    assert set(paths) <= {route.path for route in health.routes}  # type: ignore[attr-defined]
    assert paths


@pytest.mark.parametrize(
    ("role", "variable"),
    [("scheduler", "TUNEFARM_ALIVE_FILE"), ("worker", "TUNEFARM_WORKER_ALIVE_FILE")],
)
def test_a_process_that_touches_no_file_is_unhealthy(
    composition: Any, role: str, variable: str, tmp_path: Path
) -> None:
    service = composition["services"][role]
    how, command = service["healthcheck"]["test"]
    named = service["environment"][variable]
    alive = tmp_path / "alive"
    assert how == "CMD-SHELL"
    assert named in command

    def is_healthy() -> bool:
        here = command.replace(named, str(alive))
        return subprocess.run(["sh", "-c", here], stderr=subprocess.DEVNULL).returncode == 0

    assert not is_healthy()
    alive.touch()
    assert is_healthy()
    hour_ago = alive.stat().st_mtime - 3600
    os.utime(alive, (hour_ago, hour_ago))
    assert not is_healthy()


def test_every_service_is_unprivileged_and_writes_nowhere_but_in_its_volumes(composition: Any) -> None:
    for name, service in composition["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is True, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "user" in service or name in ROLES, "the images of ours name theirs"
        given = {one["source"] for one in service.get("configs", [])}
        assert given <= set(composition["configs"])
        mounted = [volume.partition(":")[0] for volume in service.get("volumes", [])]
        assert set(mounted) <= set(composition["volumes"]), "nothing of the host's is mounted"


def test_processes_write_to_the_folder_of_their_volume(
    composition: Any, dockerfile: list[Mapping[str, str]]
) -> None:
    base = stages(dockerfile)["base"]
    environment = " ".join(values(base, "ENV"))
    folder = re.findall(r"TMPDIR=(\S+)", environment)[0]
    assert f"XDG_CACHE_HOME={folder}/" in environment
    assert f"--owner 10001 --mode 700 {folder}" in " ".join(values(base, "RUN"))
    for role in ROLES:
        assert [volume.partition(":")[2] for volume in composition["services"][role]["volumes"]] == [folder]


def test_the_worker_reaches_only_the_server_and_has_only_the_worker_token(composition: Any) -> None:
    services = composition["services"]
    networks = {name: set(service["networks"]) for name, service in services.items()}
    assert not networks["worker"] & (networks["postgres"] | networks["redis"])
    assert networks["worker"] & networks["server"]
    assert composition["networks"]["storage"] == composition["networks"]["monitoring"] == {"internal": True}
    assert not networks["worker"] & (networks["prometheus"] | networks["grafana"])
    known = set(INTERPOLATED.findall(json.dumps(services["worker"]["environment"])))
    assert known == {"TUNEFARM_WORKER_TOKEN"}


def test_monitoring_is_a_profile_with_our_board_that_sends_the_readers_token(composition: Any) -> None:
    services, configs = composition["services"], composition["configs"]
    optional = {name for name, service in services.items() if "profiles" in service}
    assert optional == {"prometheus", "grafana"}
    assert all((ROOT / one["file"]).exists() for one in configs.values() if "file" in one)
    yaml = YAML(typ="safe")
    scraped = yaml.load(ROOT / configs["prometheus"]["file"])["scrape_configs"]
    targets = {one["job_name"]: one["static_configs"][0]["targets"] for one in scraped}
    port = services["scheduler"]["environment"]["TUNEFARM_METRICS_PORT"]
    assert targets == {"tunefarm-server": ["server:8760"], "tunefarm-scheduler": [f"scheduler:{port}"]}
    (secret,) = services["prometheus"]["secrets"]
    assert scraped[0]["authorization"]["credentials_file"] == secret["target"]
    variable = composition["secrets"][secret["source"]]["environment"]
    assert variable in services["server"]["environment"]
    (source,) = yaml.load(configs["datasource"]["content"])["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.load(configs["boards"]["content"])["providers"]
    board = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert Path(board).parent == Path(provider["options"]["path"])
    assert {"source": "board", "target": board} in services["grafana"]["configs"]


def test_every_process_of_ours_has_a_health_check(composition: Any) -> None:
    assert all("healthcheck" in composition["services"][role] for role in ROLES)


def test_only_the_server_is_published_on_the_configured_address(composition: Any) -> None:
    published = {name for name, service in composition["services"].items() if "ports" in service}
    assert published == {"server", "grafana"}
    assert composition["services"]["grafana"]["ports"] == ["127.0.0.1:3000:3000"]
    defaults = ServerSettings.model_fields
    ports = [defaults[name].default for name in ("port", "grpc_port")]
    assert composition["services"]["server"]["ports"] == [
        f"${{LISTEN:-127.0.0.1}}:{port}:{port}" for port in ports
    ]


@pytest.mark.parametrize("role", ROLES)
def test_images_are_built_from_stages_that_end_unprivileged_in_a_command_of_ours(
    composition: Any, dockerfile: list[Mapping[str, str]], role: str
) -> None:
    build = composition["services"][role]["build"]
    assert ROOT / build["context"] / build["dockerfile"] == DOCKERFILE
    steps = stages(dockerfile)[build["target"]]
    (user,) = values(steps, "USER")
    assert int(user) > 0
    (entry,) = (json.loads(value) for value in values(steps, "ENTRYPOINT"))
    assert entry == ["tunefarm", role]
    assert role in get_command(app).commands  # type: ignore[attr-defined]
    set_here = {value.partition("=")[0] for value in values(steps, "ENV")}
    assert set_here <= variables(ROLES[role])


def test_image_stages_build_on_each_other_and_on_a_release(dockerfile: list[Mapping[str, str]]) -> None:
    known: set[str] = set()
    for name, steps in stages(dockerfile).items():
        base = steps[0]["value"].partition(" ")[0]
        assert base in known or re.fullmatch(r"python:3\.\d+-slim-\w+", base)
        for source in re.findall(r"--from=(\S+)", "\n".join(values(steps, "COPY"))):
            assert source in known
        known.add(name)


def test_all_that_is_copied_exists_and_all_packages_are_copied(dockerfile: list[Mapping[str, str]]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    sources = [
        source for value in values(stages(dockerfile)["build"], "COPY") for source in value.split()[:-1]
    ]
    assert all((ROOT / source).exists() for source in sources)
    packages = {name.rstrip("*") for name in project["tool"]["setuptools"]["packages"]["find"]["include"]}
    assert packages | {"runtime"} == {source for source in sources if (ROOT / source).is_dir()}
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[0] == "!"}
    assert let_in == set(sources)


def test_all_extras_that_are_installed_exist(dockerfile: list[Mapping[str, str]]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = re.findall(r"'\.\[([\w,]+)\]'", "\n".join(values(dockerfile, "RUN")))
    assert len(extras) == len(ROLES)
    known = project["project"]["optional-dependencies"]
    assert {extra for listed in extras for extra in listed.split(",")} <= set(known)


@pytest.mark.parametrize(
    ("role", "installed"), [("server", "runtime/build.py --for-service"), ("worker", "./runtime")]
)
def test_images_that_bundle_or_run_models_have_the_runtime(
    dockerfile: list[Mapping[str, str]], role: str, installed: str
) -> None:
    assert installed in " ".join(values(stages(dockerfile)[f"build-{role}"], "RUN"))
