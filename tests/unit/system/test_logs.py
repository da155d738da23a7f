from __future__ import annotations

import asyncio
import io
import json
import logging
from typing import Any

import pytest

from system import logs


@pytest.fixture
def log() -> tuple[logging.Logger, io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.JsonFormatter())
    logger = logging.Logger("test")
    logger.addHandler(handler)
    return logger, stream


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_log_lines_have_the_ids_of_job_and_worker(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = log

    async def work() -> None:
        with logs.about(lease="l1", worker=None):
            task = asyncio.create_task(asyncio.to_thread(logger.warning, "built %s", "it"))
        await task
        logger.info("done")

    with logs.about(job="j1", trial=7):
        asyncio.run(work())
    logger.info("after")
    inside, done, after = lines(stream)
    assert (inside["message"], inside["level"], inside["logger"]) == ("built it", "WARNING", "test")
    assert {name: inside.get(name) for name in ("job", "trial", "lease", "worker")} == {
        "job": "j1", "trial": "7", "lease": "l1", "worker": None,
    }  # fmt: skip
    assert ("lease" in done, "job" in done, "job" in after) == (False, True, False)


def test_a_json_error_is_one_line_with_the_traceback(log: tuple[logging.Logger, io.StringIO]) -> None:
    logger, stream = log
    try:
        raise ValueError("wrong")
    except ValueError:
        logger.exception("it\nbroke")
    (line,) = lines(stream)
    assert line["message"] == "it\nbroke"
    assert line["error"].endswith("ValueError: wrong")


def test_control_characters_in_log_messages_are_replaced() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.TextFormatter("%(levelname)s: %(message)s"))
    log = logging.Logger("hostile")
    log.addHandler(handler)
    log.warning("job %s failed", "x\nERROR: the disk is full\x1b[2J\r")
    assert stream.getvalue() == "WARNING: job x\n    ERROR: the disk is full\ufffd[2J\ufffd failed\n"
