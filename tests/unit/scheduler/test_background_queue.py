"""Keys that are started while they wait, and while they are worked on."""

import logging
import threading

from scheduler.upkeep.background_queue import BackgroundQueue


def test_a_key_that_is_worked_on_is_worked_on_once_more() -> None:
    began, may_end, is_over = threading.Semaphore(0), threading.Semaphore(0), threading.Event()
    worked: list[str] = []

    def work(key: str) -> None:
        worked.append(key)
        began.release()
        assert may_end.acquire(timeout=30.0)
        if len(worked) == 4:
            is_over.set()

    log = logging.getLogger(__name__)
    queue = BackgroundQueue("keys", work, threads=1, max_waiting=3, log=log, retried="%s")
    queue.start("first")
    assert began.acquire(timeout=30.0)
    for key in ("first", "first", "waits", "waits", "last"):
        queue.start(key)
    may_end.release(4)
    assert is_over.wait(30.0)
    queue.stop()
    assert worked == ["first", "waits", "last", "first"]
