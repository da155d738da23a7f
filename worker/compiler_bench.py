"""The real bench: the compiler's, one per target. Only the child imports this, because it imports TVM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import compiler.bench
from compiler.bench import Built
from compiler.target import probe
from search.device import Device
from search.measurement import Measurement, Outcome
from worker.bench import Phase, Subject


class CompilerBench:
    """Measures on this machine's CPU with TVM. `TVM_NUM_THREADS` in the environment must equal `threads`."""

    def __init__(self, threads: int) -> None:
        self._device = probe(threads)
        self._bench = lru_cache(maxsize=4)(compiler.bench.Bench)
        self._builders = ThreadPoolExecutor(threads, thread_name_prefix="build")
        self._built: dict[Subject, Built | Measurement] = {}

    def check(self) -> Device:
        """Raises RuntimeError when the probe kernel computes a wrong result."""
        self._bench(self._device.target).self_check()
        return self._device

    def measure(
        self, subject: Subject, ahead: Sequence[Subject], entered: Callable[[Phase], None]
    ) -> Measurement:
        if subject not in self._built:
            together = (subject, *ahead)
            self._built = dict(zip(together, self._builders.map(self._build, together), strict=True))
        built = self._built.pop(subject)
        if isinstance(built, Measurement):
            return built
        entered(Phase.RUN)
        return self._bench(subject.target).run(built, subject.module_json, subject.constants)

    def _build(self, subject: Subject) -> Built | Measurement:
        try:
            return self._bench(subject.target).build(subject.module_json, subject.trace)
        except ValueError as error:
            return Measurement(Outcome.BUILD_ERROR, error=str(error))

    def measure_module(self, artifact: bytes) -> Measurement:
        return self._bench(self._device.target).measure_module(artifact)
