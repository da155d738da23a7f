"""Requests that schemathesis generates from the OpenAPI document are answered as the document says."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
import requests
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test

from core.job import Budget, JobState
from core.measurement import Measurement, Outcome
from core.tokens import Scope
from core.worker import WorkerState
from records import access
from records.access import Token
from records.jobs import jobs, tasks, trials
from records.jobs.jobs import JobRequest
from records.jobs.tasks import TaskSpec
from records.jobs.trials import NewTrial
from records.schedules import cost_models
from records.schedules.cost_models import Version
from records.storage import blobs
from records.storage.database import Database
from server.access.scopes import OPEN_PATHS
from server.app import create_app
from server.context import ServerContext
from server.problems import MEDIA_TYPE
from server.settings import ServerSettings
from tests.devices import DEVICE
from tests.integration.server.conftest import Service, Worker, launch
from tests.integration.server.requests import METRICS, leased, results
from tests.marks import slow_lane_except

pytestmark = pytest.mark.slow

CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
SECRET = "the bootstrap token"
JOB, WORKER, TOKEN, WORKLOAD = "job-1", "board", "token-1", "abc"
# h11 rejects these characters before the application sees a request.
CONTROLS = "".join(map(chr, (*range(32), 127)))


def document() -> dict[str, Any]:
    settings = ServerSettings(database_url="sqlite://", broker="none")
    context = ServerContext(settings, Database("sqlite://"), lambda *_: None, time.time, lambda: "id")
    return create_app(context).openapi()


@cache
def operations(examples: int, phases: tuple[str, ...], known: bool = False) -> Mapping[str, Any]:
    """Return the document's operations by label, configured to make `examples` requests of each.

    With `known`, requests name what is stored.
    """
    config = {
        "seed": 1,
        "checks": {"enabled": False} | {name: {"enabled": True} for name in CHECKS},
        "phases": {"enabled": False} | {name: {"enabled": True} for name in phases},
        "generation": {
            "max-examples": examples,
            "database": "none",
            "exclude-header-characters": CONTROLS,
        },
        **({"parameters": IDS} if known else {}),
    }
    schema = schemathesis.openapi.from_dict(document(), config=SchemathesisConfig.from_dict(config))
    results: list[Any] = list(schema.get_all_operations())
    return {one.label: one for result in results for one in [result.ok()]}


@dataclass(frozen=True)
class Site:
    """A running server with a client's session; `model` is the digest of a model stored there, or ""."""

    url: str
    session: requests.Session
    model: str = ""


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as opened:
        opened.trust_env = False
        yield opened


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory, session: requests.Session) -> Iterator[Site]:
    service, stop = launch(tmp_path_factory.mktemp("empty"))
    yield Site(service.url, session)
    session.close()
    stop()


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory, session: requests.Session) -> Iterator[Site]:
    """A server with a finished job."""
    service, stop = launch(tmp_path_factory.mktemp("full"))
    yield Site(service.url, session, filled(service))
    session.close()
    stop()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, session: requests.Session) -> Iterator[Site]:
    """A server that needs a token."""
    unlimited: dict[str, Any] = {"rate_limit": "off", "failure_limit": "off"}
    service, stop = launch(tmp_path_factory.mktemp("guarded"), token=SECRET, **unlimited)
    yield Site(service.url, session)
    session.close()
    stop()


def filled(service: Service) -> str:
    """Store a finished job, and one row of everything else. Return the model's digest."""
    worker = Worker(service.fleet, id=WORKER)
    worker.call(WorkerState.PROBING)
    worker.call()
    model = service.upload()
    with service.database.begin() as session:
        access.add_token(session, Token(TOKEN, "reader", frozenset({Scope.READ}), 1.0), "0" * 64)
        cost_models.add(session, Version(DEVICE.key, 100, 5.0, 6.0, 0.25, METRICS), b"trees")
        request = JobRequest(model, "relu", {"x": (4,)}, "native", Budget(3, 1.5))
        jobs.create(session, JOB, request, jobs.Submission(1.0))
        jobs.set_device_class(session, JOB, DEVICE.key)
        jobs.advance(session, JOB, {JobState.QUEUED}, JobState.TUNING, 1.0)
        tasks.put_workload(session, WORKLOAD, '{"root":1}')
        specs = [TaskSpec(JOB, WORKLOAD, "conv", 1, 1e6, True, "", (1,))]
        tasks.add_tasks(session, JOB, specs)
        (task,) = tasks.for_job(session, JOB)
        new = [NewTrial(task.id, WORKLOAD, {"n": n}, f"[{n}]", 1e-3) for n in range(3)]
        trials.add(session, JOB, 1, new, 2.0)
    measured = Measurement(Outcome.OK, (2e-3, 1e-3), 0.05)
    worker.call(results=results(leased(worker), measured))
    with service.database.begin() as session:
        jobs.set_artifacts(session, JOB, tuned_sha=blobs.put(session, b"a tar file"))
        jobs.set_end_to_end(session, JOB, "untuned", (0.5, 0.6))
        jobs.set_end_to_end(session, JOB, "tuned", (0.1, 0.2))
        jobs.advance(session, JOB, {JobState.TUNING}, JobState.DONE, 5.0)
    return model


def send(case: schemathesis.Case[Any], site: Site, **headers: str) -> int:
    """Send a request and check its answer against the document. Return the status."""
    answer = case.call_and_validate(base_url=site.url, session=site.session, headers=headers)
    if answer.status_code >= 400:
        body = answer.json()
        assert body["status"] == answer.status_code
        assert body["type"].startswith("urn:tunefarm:problem:")
        assert body["detail"]
    return int(answer.status_code)


PATHS = document()["paths"]
OPERATIONS = [f"{method.upper()} {path}" for path, methods in PATHS.items() for method in methods]
# The job is deleted last.
OPERATIONS.sort(key=lambda operation: operation.startswith("DELETE"))
IDS = {"job_id": JOB, "worker_id": WORKER, "token_id": TOKEN, "workload": WORKLOAD}
ALL, FUZZING = ("examples", "coverage", "fuzzing"), ("fuzzing",)
of_every_operation = pytest.mark.parametrize("label", OPERATIONS)
# Operations that list, read, write and upload.
WITHOUT_DATA = (
    *("GET /v1/jobs", "GET /v1/jobs/{job_id}", "POST /v1/jobs", "DELETE /v1/jobs/{job_id}"),
    "POST /v1/models",
)


def request_all(operation: Any, request: Callable[[schemathesis.Case[Any]], object]) -> None:
    """Call `request` with every case that schemathesis generates for an operation.

    Its own decorator would generate the cases during collection, which takes twenty seconds.
    """

    def test(case: schemathesis.Case[Any]) -> None:
        request(case)

    build_operation_test(
        config=operation.schema.config,
        operation=operation,
        test_func=test,
        given_kwargs={},
        feedback=FeedbackSources(),
    )()


@pytest.mark.parametrize("label", slow_lane_except(OPERATIONS, *WITHOUT_DATA, seconds=0.3))
def test_an_empty_service_answers_as_the_document_says(label: str, empty: Site) -> None:
    request_all(operations(10, FUZZING)[label], lambda case: send(case, empty))


@of_every_operation
def test_a_service_with_a_job_answers_as_the_document_says(label: str, full: Site) -> None:
    def request(case: schemathesis.Case[Any]) -> None:
        if isinstance(case.body, dict) and "model" in case.body:
            case.body["model"] = full.model
        send(case, full)

    request_all(operations(12, ALL, known=True)[label], request)


@of_every_operation
def test_without_a_token_nothing_but_probes_is_answered(label: str, guarded: Site) -> None:
    def request(case: schemathesis.Case[Any]) -> None:
        assert send(case, guarded) == (200 if case.path in OPEN_PATHS else 401)

    request_all(operations(2, FUZZING)[label], request)


@pytest.mark.slow_lane(seconds=0.3)
@of_every_operation
def test_a_service_with_a_token_answers_as_the_document_says(label: str, guarded: Site) -> None:
    def request(case: schemathesis.Case[Any]) -> None:
        assert send(case, guarded, Authorization=f"Bearer {SECRET}") != 401

    request_all(operations(5, FUZZING)[label], request)


def test_every_error_in_the_document_is_a_problem_document() -> None:
    operations = [operation for methods in PATHS.values() for operation in methods.values()]
    assert len(operations) > 20
    for operation in operations:
        assert {"422", "429", "500"} <= set(operation["responses"])
        for status, answer in operation["responses"].items():
            assert not status.startswith(("4", "5")) or set(answer["content"]) == {MEDIA_TYPE}
