"""Traces: only jobs with a trace are traced, and spans have the right parents."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from system import tracing

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    kept, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield kept
    provider.shutdown()


def test_without_a_parent_no_span_is_recorded(exporter: InMemorySpanExporter) -> None:
    with tracing.span("step"), tracing.span("part", ""):
        assert tracing.current() == ""
    assert exporter.get_finished_spans() == ()


def test_spans_are_nested_below_their_parents(exporter: InMemorySpanExporter) -> None:
    with tracing.span("step", PARENT, job="j"):
        with tracing.span("part", trials=3):
            assert tracing.current().split("-")[1] == PARENT.split("-")[1]
        with tracing.span("another job's", ""):
            assert tracing.current() == "", "it belongs to no trace, whatever is around it"
    part, step = exporter.get_finished_spans()
    assert (step.name, part.name) == ("step", "part")
    assert step.parent is not None
    assert f"{step.parent.span_id:x}" == PARENT.split("-")[2]
    assert part.parent == step.context
    assert (dict(step.attributes or {}), dict(part.attributes or {})) == (
        {"tunefarm.job": "j"},
        {"tunefarm.trials": 3},
    )


def test_calls_below_a_parent_have_its_trace(exporter: InMemorySpanExporter) -> None:
    with tracing.below(PARENT):
        assert tracing.current() == PARENT
    with tracing.below("nonsense"):
        assert tracing.current() == ""
    assert tracing.current() == ""


def test_tracing_is_off_without_an_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tracing.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)
    assert not tracing.is_on()
    with tracing.exported("server"):
        assert tracing.current() == ""


def test_a_missing_tracing_extra_is_reported(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(tracing.ENDPOINTS[1], "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    assert not tracing.is_on()
    with tracing.exported("server"):
        pass
    assert "pip install 'tunefarm[tracing]'" in caplog.text
