"""The alert rules and the Grafana board load, and use only existing metrics. Grafana's published model of
dashboards loads the board. `tests/acceptance/test_monitoring.py` sends its queries to a real Prometheus.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from prometheus_client import CollectorRegistry
from ruamel.yaml import YAML

from scheduler.metrics import SchedulerMetrics
from server.metrics import ServerMetrics

FOLDER = Path(__file__).parents[3] / "deploy" / "monitoring"


def promtool(*words: str | Path) -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed: apt-get install prometheus")
    done = subprocess.run(["promtool", *words], cwd=FOLDER, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def expressions() -> Iterator[str]:
    """All of the board and of the rules."""
    for panel in json.loads((FOLDER / "grafana.json").read_text())["panels"]:
        yield from (target["expr"] for target in panel["targets"])
    (group,) = YAML(typ="safe").load(FOLDER / "alerts.yml")["groups"]
    yield from (rule["expr"] for rule in group["rules"])


def samples(registry: CollectorRegistry) -> set[str]:
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    return {family.name + end for family in registry.collect() for end in suffixes[family.type]}


def test_every_metric_that_is_asked_for_exists() -> None:
    known = samples(ServerMetrics().registry) | samples(SchedulerMetrics().registry)
    asked = {name for text in expressions() for name in re.findall(r"tunefarm_\w+", text)}
    assert len(asked) > 15
    assert asked <= known


def test_the_rules_are_valid_and_fire_when_they_should(tmp_path: Path) -> None:
    promtool("check", "rules", "alerts.yml")
    promtool("test", "rules", "alerts_test.yml")


def test_the_board_asks_what_prometheus_understands(tmp_path: Path) -> None:
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions())]
    with (tmp_path / "board.yml").open("w") as file:
        YAML(typ="safe").dump({"groups": [{"name": "board", "rules": rules}]}, file)
    promtool("check", "rules", tmp_path / "board.yml")


def test_the_configuration_is_valid(tmp_path: Path) -> None:
    promtool("check", "config", "--syntax-only", "prometheus.yml")


def test_grafana_keeps_every_word_of_the_board() -> None:
    board = json.loads((FOLDER / "grafana.json").read_text())
    register_default_plugins()
    loaded = Dashboard.from_json(board)
    assert lost(board, json.loads(JSONEncoder().encode(loaded))) == []


def lost(written: object, loaded: object, at: str = "board") -> list[str]:
    """Return the paths in `written` that `loaded` lacks, because Grafana's model doesn't know them."""
    if isinstance(written, dict) and isinstance(loaded, dict):
        missing = [f"{at}.{key}" for key in written.keys() - loaded.keys()]
        shared = written.keys() & loaded.keys()
        return missing + [one for key in shared for one in lost(written[key], loaded[key], f"{at}.{key}")]
    if isinstance(written, list) and isinstance(loaded, list) and len(written) == len(loaded):
        pairs = enumerate(zip(written, loaded, strict=True))
        return [one for number, pair in pairs for one in lost(*pair, f"{at}[{number}]")]
    return [] if written == loaded else [at]


def test_panels_have_their_own_places_and_ids() -> None:
    panels = json.loads((FOLDER / "grafana.json").read_text())["panels"]
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}
    assert len(places) == len({panel["id"] for panel in panels}) == len(panels)
