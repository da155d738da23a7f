"""Real processes answer invalid messages correctly, and neither crash nor leak."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import fleet, imports, uploads
from tests.fuzz.failures import Failures
from tests.fuzz.figures import MAX_NEW_FILES
from tests.fuzz.imports import Importer, importing
from tests.fuzz.service import Growth, Service, running
from tests.onnx_models import MODELS

pytestmark = pytest.mark.slow

CALLS, UPLOADS, IMPORTS = 1200, 400, 100


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("service")) as started:
        yield started


@pytest.fixture
def failures(tmp_path: Path) -> Failures:
    """Failures whose messages are kept in pytest's temporary folder."""
    return Failures(print, tmp_path)


@pytest.fixture
def importer() -> Iterator[Importer]:
    with importing() as started:
        yield started


def test_the_service_survives_invalid_worker_messages(service: Service, failures: Failures) -> None:
    growth = Growth()
    sender = fleet.Sender(service, failures, growth)
    sender.send(CALLS, Random(1))
    assert failures.kinds == {}
    assert sender.answers.total() == CALLS
    expected = {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "UNAUTHENTICATED"}
    assert expected <= set(sender.answers)
    assert growth.new_files <= MAX_NEW_FILES
    assert fleet.is_served(service, 2)


def test_the_service_survives_uploads_that_are_no_models(service: Service, failures: Failures) -> None:
    growth = Growth()
    uploader = uploads.Uploader(service, failures, growth)
    uploader.send(UPLOADS, Random(2))
    assert failures.kinds == {}
    assert set(uploader.answers) == {"201", "422"}
    assert growth.new_files <= MAX_NEW_FILES
    assert fleet.is_served(service, 3)


def test_the_importer_survives_invalid_models(importer: Importer, failures: Failures) -> None:
    endings = imports.send(importer, IMPORTS, Random(3), failures)
    assert failures.kinds == {}
    assert set(endings) == {"imported", "refused"}
    assert importer.most_taken_bytes < 1 << 30


def test_an_importer_that_dies_is_noticed_and_replaced(importer: Importer) -> None:
    good = MODELS["two_outputs"]()
    assert importer.attempt(good, fuses=True).how == "imported"
    assert importer._process is not None
    importer._process.kill()
    assert importer.attempt(good, fuses=False).how == "crashed SIGKILL"
    assert importer.attempt(good, fuses=False).how == "imported"
    assert importer.attempt(b"no model", fuses=False).how == "refused"
