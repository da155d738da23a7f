"""Cost models over HTTP."""

from __future__ import annotations

from records.schedules import cost_models
from records.schedules.cost_models import Version
from tests.devices import DEVICE
from tests.integration.server.requests import METRICS

from .conftest import Service, Worker


def store(service: Service, *versions: Version) -> None:
    with service.database.begin() as session:
        for version in versions:
            cost_models.add(session, version, b"trees")


def test_the_newest_version_with_the_newest_metrics(service: Service, worker: Worker) -> None:
    worker.call()
    store(
        service,
        Version(DEVICE.key, 100, 5.0, 6.0, 0.25, METRICS),
        Version(DEVICE.key, 110, 7.0, 8.0, 0.5, None),
    )
    for query in ({}, {"target": DEVICE.key}, {"target": "native"}):
        [found] = service.http.get("/v1/cost-models", params=query).json()["items"]
        assert found == {
            "device_class": DEVICE.key,
            "device_name": DEVICE.name,
            "versions": 2,
            "records": 110,
            "newest_record_at": 7.0,
            "created_at": 8.0,
            "train_s": 0.5,
            "total_train_s": 0.75,
            "metrics_at": 6.0,
            "metrics": METRICS,
        }


def test_metrics_are_null_before_the_first_evaluation(service: Service, worker: Worker) -> None:
    worker.call()
    store(service, Version(DEVICE.key, 50, 5.0, 6.0, 0.25, None))
    [found] = service.http.get("/v1/cost-models").json()["items"]
    assert (found["metrics"], found["metrics_at"]) == (None, None)


def test_before_the_first_training_there_is_no_cost_model(service: Service, worker: Worker) -> None:
    assert service.http.get("/v1/cost-models").json() == {"items": []}
    worker.call()
    answer = service.http.get("/v1/cost-models", params={"target": DEVICE.key})
    assert (answer.status_code, answer.json()["title"]) == (404, "No cost model")
    assert answer.headers["content-type"] == "application/problem+json"
    assert "tune a model" in answer.json()["detail"]


def test_the_cost_model_of_an_unknown_class_is_not_found(service: Service) -> None:
    answer = service.http.get("/v1/cost-models", params={"target": "toaster"})
    assert (answer.status_code, answer.json()["title"]) == (422, "Unknown target")


def test_cost_models_are_in_the_openapi_document(service: Service) -> None:
    schema = service.http.get("/openapi.json").json()
    answer = schema["paths"]["/v1/cost-models"]["get"]["responses"]["200"]["content"]["application/json"]
    assert answer["schema"]["$ref"].endswith("/CostModelsBody")
