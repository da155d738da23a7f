"""An OTLP collector receives one trace of a job, with spans of every process."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.acceptance.commands import done, tunefarm

pytestmark = [pytest.mark.slow_lane(seconds=16), pytest.mark.timeout(600)]


class Collector(TraceServiceServicer):
    """Keeps the spans that arrive, by the service that sent them."""

    def __init__(self) -> None:
        self.spans: defaultdict[str, list[Span]] = defaultdict(list)

    def Export(  # noqa: N802
        self, request: ExportTraceServiceRequest, context: object
    ) -> ExportTraceServiceResponse:
        for sent in request.resource_spans:
            (name,) = (
                one.value.string_value for one in sent.resource.attributes if one.key == "service.name"
            )
            for scope in sent.scope_spans:
                self.spans[name] += scope.spans
        return ExportTraceServiceResponse()


@contextmanager
def over_grpc(collector: Collector) -> Iterator[dict[str, str]]:
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield {
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}",
    }
    server.stop(None).wait()


@contextmanager
def over_http(collector: Collector) -> Iterator[dict[str, str]]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                raise AssertionError("nobody asked for compression")
            answer = collector.Export(ExportTraceServiceRequest.FromString(body), None).SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("transport", [over_grpc, over_http])
def test_a_job_is_one_trace_of_server_scheduler_and_worker(
    transport: Any, model: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    collector = Collector()
    with transport(collector) as variables:
        done(tunefarm(["tune", model, "--trials", 8, "--json"], environment | variables, tmp_path))
    (submitted,) = (span for span in collector.spans["tunefarm-server"] if span.name == "POST /v1/jobs")
    names: dict[str, set[str]] = {}
    by_id: dict[bytes, Span] = {}
    for service, spans in collector.spans.items():
        of_job = [span for span in spans if span.trace_id == submitted.trace_id]
        names[service] = {span.name for span in of_job}
        by_id |= {span.span_id: span for span in of_job}
    assert names["tunefarm-server"] >= {"lease", "/tunefarm.v1.Fleet/Synchronize"}
    steps = {"intake", "import and compile untuned", "verify import", "round", "train cost model", "search"}
    assert names["tunefarm-scheduler"] >= steps | {"compile", "compile tuned", "publish"}
    assert names["tunefarm-worker"] >= {"work on lease", "candidate", "build", "run"}

    def path(span: Span) -> list[str]:
        """The names from the root down to a span."""
        above = path(by_id[span.parent_span_id]) if span.parent_span_id else []
        return [*above, span.name]

    paths = {"/".join(path(span)) for span in by_id.values()}
    assert "POST /v1/jobs/lease/work on lease/candidate/run" in paths
    assert "POST /v1/jobs/round/search" in paths
    assert "POST /v1/jobs/publish" in paths
    candidates = [span for span in by_id.values() if span.name == "candidate"]
    assert len(candidates) >= 8
    assert {one.key for one in candidates[0].attributes} >= {
        "tunefarm.trial",
        "tunefarm.workload",
        "tunefarm.outcome",
    }
