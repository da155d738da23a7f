"""Complete the ids of jobs and the names of workers in the shell."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from tunefarm.client.client import Client
from tunefarm.embedded.service import connect
from tunefarm.settings import load

_MAX_CHOICES = 50


def job_ids(incomplete: str) -> list[tuple[str, str]]:
    """Return the newest jobs whose ids start with the text, each with its model and state."""

    def listed(client: Client) -> list[tuple[str, str]]:
        return [(job.id, f"{job.model_name}, {job.state}") for job in islice(client.jobs(), _MAX_CHOICES)]

    return [pair for pair in _asked(listed) if pair[0].startswith(incomplete)]


def worker_names(incomplete: str) -> list[tuple[str, str]]:
    """Return the workers whose names start with the text, each with its device."""

    def listed(client: Client) -> list[tuple[str, str]]:
        return [(worker.id, worker.device_name or "") for worker in client.workers()]

    return [pair for pair in _asked(listed) if pair[0].startswith(incomplete)]


def _asked(listed: Callable[[Client], list[tuple[str, str]]]) -> list[tuple[str, str]]:
    # Errors are ignored, because a message would appear among the suggestions.
    try:
        with connect(load()) as service:
            return listed(service.client)
    except Exception:
        return []
