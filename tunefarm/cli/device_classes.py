"""The names of device classes for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from tunefarm.client.client import Client


@dataclass(frozen=True)
class NamedClass:
    """A device class: the `target` that means it, and its name for people, which tells it from the others."""

    target: str
    name: str
    is_ready: bool


def named_classes(client: Client) -> dict[str, NamedClass]:
    """Return the device classes by their keys. If several have one name, their targets are their keys, and
    their names end with their connected workers, or the key without any.
    """
    workers, classes = client.workers(), client.device_classes()
    count = Counter(one.name for one in classes)
    named = {}
    for one in classes:
        ready = sorted(worker.id for worker in workers if worker.connected and worker.device_class == one.key)
        if count[one.name] == 1:
            named[one.key] = NamedClass(one.name, one.name, bool(ready))
        else:
            named[one.key] = NamedClass(one.key, f"{one.name} ({', '.join(ready) or one.key})", bool(ready))
    return named


def name_of(classes: Mapping[str, NamedClass], target: str) -> str:
    """Return the name of the class with this key. Other targets, such as `native`, stay as they are."""
    return classes[target].name if target in classes else target
