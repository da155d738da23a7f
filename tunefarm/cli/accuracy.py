"""Shows how well cost models predict."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rich.markup import escape
from rich.table import Table

from core.durations import latency_text
from tunefarm.client.values import Accuracy, CostModelReport

LEGEND = (
    "learned / analytic, on records held out: R2 of throughput relative to the task's best, pairs in the "
    "right order, the 30 fastest found among the 30 predicted"
)


def summary(models: Sequence[CostModelReport]) -> Table:
    """A line for every device class: how often trained, on what, how long, how well."""
    table = Table(box=None, pad_edge=False)
    for name in ("device", "class", "trained", "versions", "records", "training", "in all", "held out"):
        table.add_column(name)
    for name in ("R2", "pairs", "recall@30"):
        table.add_column(name, no_wrap=True)
    for model in models:
        trained = datetime.fromtimestamp(model.created_at).isoformat(" ", "seconds")
        counts = str(model.versions), str(model.records)
        secs = latency_text(model.train_secs), latency_text(model.total_train_secs)
        table.add_row(
            escape(model.device_name), model.device_class, trained, *counts, *secs, *_metrics(model)
        )
    return table


def _metrics(model: CostModelReport) -> list[str]:
    if model.metrics is None:
        return ["-"] * 4
    learned, analytic = model.metrics.learned, model.metrics.analytic
    pairs = zip(_values(learned), _values(analytic), strict=True)
    return [str(learned.records), *(f"{one} / {other}" for one, other in pairs)]


def _values(metrics: Accuracy) -> list[str]:
    values = (metrics.r2, metrics.pairwise, metrics.recall)
    return ["-" if value is None else f"{value:.3f}" for value in values]
