"""Traces: the spans of a job in all processes that work on it, sent by OpenTelemetry if an endpoint is set.

A trace begins with the request that submits a job. The job and its leases carry the `traceparent` (W3C Trace
Context) of the spans in other processes. It is empty if the job isn't traced.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from opentelemetry import context, trace
from opentelemetry.trace import Span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

_log = logging.getLogger(__name__)

# OpenTelemetry's variables. Its libraries read other variables (headers, certificates, sampling) themselves.
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HEADER = "traceparent"
_propagator = TraceContextTextMapPropagator()


def is_on() -> bool:
    """Return whether an endpoint for spans is set and an exporter is installed."""
    return any(os.environ.get(name) for name in ENDPOINTS) and _exporter_class() is not None


@contextlib.contextmanager
def exported(role: str) -> Iterator[None]:
    """Export the spans of this process if tracing is on, until the context ends. `role` names the process."""
    if not any(os.environ.get(name) for name in ENDPOINTS):
        yield
        return
    exporter = _exporter_class()
    if exporter is None:
        _log.warning("an OTLP endpoint is set, but no traces are sent: pip install 'tunefarm[tracing]'")
        yield
        return
    from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_NAMESPACE, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    name = os.environ.get("OTEL_SERVICE_NAME") or f"tunefarm-{role}"
    resource = Resource.create({SERVICE_NAME: name, SERVICE_NAMESPACE: "tunefarm"})
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter()))
    trace.set_tracer_provider(provider)
    try:
        yield
    finally:
        provider.shutdown()


def _exporter_class() -> type[SpanExporter] | None:
    """Return the exporter for the configured protocol; None if it isn't installed."""
    protocol = next(filter(None, map(os.environ.get, _PROTOCOLS)), "http/protobuf")
    try:
        if protocol == "grpc":
            from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

            return Grpc
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

        return Http
    except ImportError:
        return None


@contextlib.contextmanager
def span(name: str, parent: str | None = None, **attributes: str | int) -> Iterator[Span]:
    """Begin a span below the traceparent `parent`, or below the current span. Without either, begin no span.

    Attributes are named `tunefarm.NAME`.
    """
    around = None if parent is None else _propagator.extract({_HEADER: parent})
    if not trace.get_current_span(around).get_span_context().is_valid:
        with below(parent) if parent is not None else contextlib.nullcontext():
            yield trace.INVALID_SPAN
        return
    named: dict[str, Any] = {f"tunefarm.{key}": value for key, value in attributes.items()}
    with trace.get_tracer("tunefarm").start_as_current_span(name, around, attributes=named) as begun:
        yield begun


@contextlib.contextmanager
def below(parent: str) -> Iterator[None]:
    """Make a traceparent's span the current one in this context, unless the traceparent is empty."""
    token = context.attach(_propagator.extract({_HEADER: parent}))
    try:
        yield
    finally:
        context.detach(token)


def current() -> str:
    """Return the traceparent of the current span; "" without one."""
    carrier: dict[str, str] = {}
    _propagator.inject(carrier)
    return carrier.get(_HEADER, "")
