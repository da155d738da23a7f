"""The threads that use the database. Each kind of call has its own pool, so that no kind waits for another.

Workers' calls and the look-ups of their tokens run in the event loop's executor (`asyncio.to_thread`). HTTP
handlers run in the framework's thread pool (`run_in_threadpool`). Transfers of files run in separate
`Threads`. Together there are as many threads as a process may have transactions (`records.storage.database`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from anyio.to_thread import current_default_thread_limiter

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")

# A transaction waits for PostgreSQL about as long as it computes, and only one thread computes at a time.
# With more threads, each would hold its locks longer.
_FLEET_THREADS = 8
_HTTP_THREADS = 8
_TRANSFER_THREADS = 4


class Threads:
    """Threads for the transfer of files: uploads, imports, libraries and artifacts."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(_TRANSFER_THREADS, "transfer")

    async def run(
        self, function: Callable[_Given, _Result], *args: _Given.args, **kwargs: _Given.kwargs
    ) -> _Result:
        """Run a function in the next free thread, and return its result."""
        return await asyncio.wrap_future(self._executor.submit(function, *args, **kwargs))


def bound_threads() -> None:
    """Bound the number of threads of the running event loop and of its HTTP framework."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_FLEET_THREADS, "fleet"))
    current_default_thread_limiter().total_tokens = _HTTP_THREADS
