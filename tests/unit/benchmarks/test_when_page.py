"""The figures in docs/when.md are the recorded ones."""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean

import pytest

from benchmarks.results import figures

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "when.md").read_text()
NETWORKS = (
    *("resnet18", "mobilenet_v2", "resnet50", "efficientnet_b0", "convnext_t", "dcgan", "resnet3d_18"),
    *("bert_base", "gpt2", "vit_b16"),
)


def recorded(file: str, name: str) -> float | None:
    """Return a figure of docs/benchmarks; None if there is none."""
    found = figures.read(DOCS / "benchmarks" / f"{file}.json").figures
    return next((one.value for one in found if one.name == name), None)


@pytest.mark.parametrize(
    ("title", "peer", "files"),
    [
        ("ONNX Runtime", "ONNX Runtime", ("networks", "networks_avx2")),
        ("OpenVINO", "OpenVINO", ("networks", "networks_avx2")),
        ("torch.compile, six networks", "torch.compile (max-autotune)", ("networks",)),
    ],
)
def test_the_pages_ratios_follow_from_all_networks(title: str, peer: str, files: tuple[str, ...]) -> None:
    cells = []
    for file in files:
        known = [recorded(f"{file}_{name}", f"{name}: latency relative to {peer}") for name in NETWORKS]
        ratios = [1 / value for value in known if value]
        assert len(ratios) == (6 if "torch" in peer else 10)
        cells.append(f"{geometric_mean(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    assert f"| {title} | {' | '.join(cells)} |" in PAGE.replace(" | – |", " |")


def test_losses_and_single_ratios_are_recorded() -> None:
    of_onnx = "latency relative to ONNX Runtime, int8"
    vit = recorded("networks_vit_b16", "vit_b16: latency relative to the fastest peer")
    told = {
        recorded("element_types_resnet18_int8", f"resnet18: {of_onnx}"): "1.13 times as long",
        recorded(
            "element_types_mobilenet_v2_int8", f"mobilenet_v2: {of_onnx}"
        ): "1.08 times for MobileNet-V2",
        recorded("networks_metaschedule_resnet18", "resnet18: latency relative to MetaSchedule"): "0.52 and",
        recorded("networks_metaschedule_bert_base", "bert_base: latency relative to MetaSchedule"): "0.61 of",
        1 / (vit or 1): "1.02.",
    }
    text = " ".join(PAGE.split())
    for value, words in told.items():
        assert value is not None
        assert words in text
        assert f"{value:.2f}" in words
