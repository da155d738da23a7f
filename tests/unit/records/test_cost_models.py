from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from records import devices
from records.devices import DeviceClassNotFound
from records.schedules import cost_models
from records.schedules.cost_models import VERSIONS_WITH_BYTES, Version
from records.storage.tables import CostModelRow
from tests.devices import DEVICE

OTHER = replace(DEVICE, cores=DEVICE.cores + 1)
FIRST = Version(DEVICE.key, 100, 5.0, 6.0, 0.25, {"learned": {"r2": 0.9}})


@pytest.fixture
def classes(session: Session) -> Session:
    devices.put_class(session, DEVICE)
    devices.put_class(session, OTHER)
    return session


def test_round_trip(classes: Session) -> None:
    assert cost_models.newest(classes, DEVICE.key) is None
    assert cost_models.versions(classes) == {}
    cost_models.add(classes, FIRST, b"trees")
    assert cost_models.newest(classes, DEVICE.key) == (FIRST, b"trees")
    assert cost_models.versions(classes) == {DEVICE.key: [FIRST]}


def test_the_newest_version_of_a_class_comes_first(classes: Session) -> None:
    second = replace(FIRST, records=200, metrics=None)
    other = replace(FIRST, device_class=OTHER.key)
    for version, model in ((FIRST, b"1"), (second, b"2"), (other, b"3")):
        cost_models.add(classes, version, model)
    assert cost_models.newest(classes, DEVICE.key) == (second, b"2")
    assert cost_models.versions(classes) == {DEVICE.key: [second, FIRST], OTHER.key: [other]}
    assert cost_models.versions(classes, OTHER.key) == {OTHER.key: [other]}
    assert cost_models.evaluated([second, FIRST]) == FIRST
    assert cost_models.evaluated([second]) is None


def test_old_versions_lose_their_bytes_and_stay_listed(classes: Session) -> None:
    other = replace(FIRST, device_class=OTHER.key)
    cost_models.add(classes, other, b"of another class")
    for number in range(VERSIONS_WITH_BYTES + 3):
        cost_models.add(classes, replace(FIRST, records=number), b"%d" % number)
    kept = select(func.count()).where(CostModelRow.model.is_not(None))
    assert classes.scalar(kept.where(CostModelRow.device_class == DEVICE.key)) == VERSIONS_WITH_BYTES
    found = cost_models.newest(classes, DEVICE.key)
    assert found is not None
    assert found[1] == b"%d" % (VERSIONS_WITH_BYTES + 2)
    assert len(cost_models.versions(classes)[DEVICE.key]) == VERSIONS_WITH_BYTES + 3
    assert cost_models.newest(classes, OTHER.key) == (other, b"of another class")


def test_no_more_versions_are_listed_than_a_page_shows(
    classes: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cost_models, "LISTED_VERSIONS", 3)
    cost_models.add(classes, replace(FIRST, device_class=OTHER.key), b"of another class")
    for number in range(8):
        metrics = FIRST.metrics if number in (0, 1) else None
        cost_models.add(classes, replace(FIRST, records=number, metrics=metrics), b"trees")
    listed = cost_models.versions(classes)
    # The newest three, and the evaluated ones.
    assert [version.records for version in listed[DEVICE.key]] == [7, 6, 5, 1, 0]
    assert len(listed[OTHER.key]) == 1


def test_the_class_comes_first(session: Session) -> None:
    with pytest.raises(DeviceClassNotFound):
        cost_models.add(session, FIRST, b"trees")
