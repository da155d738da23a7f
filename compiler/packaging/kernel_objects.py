"""Compile a model's kernels into objects on all cores: LLVM compiles a module on one."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

import tvm
from tvm import tirx

from compiler.tir_nodes import find_all

# More parts than cores even their times out, but each part has its own copy of a few helper functions.
PARTS_PER_CORE = 2


class KernelObjects:
    """Compiles kernels in threads while it is entered, because TVM's compiler doesn't hold Python's lock.

    The threads use the pass context in which this object is made.
    """

    def __init__(self, target: tvm.target.Target, pipeline: str, folder: Path) -> None:
        """Objects for `target`, lowered by a TIR pipeline, go into `folder`."""
        self._target, self._pipeline, self._folder = target, pipeline, folder
        self._context = tvm.transform.PassContext.current()
        self._cores = len(os.sched_getaffinity(0))
        self._threads = ThreadPoolExecutor(self._cores)
        self._objects: list[Future[str]] = []

    def __enter__(self) -> KernelObjects:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._threads.shutdown(cancel_futures=True)

    def start(self, module: tvm.IRModule) -> tvm.IRModule:
        """Begin to compile a lowered model's kernels; return the model without them.

        The smallest kernel stays, because TVM doesn't pack a model without any.
        """
        kernels = {
            var.name_hint: var for var, one in module.functions_items() if isinstance(one, tirx.PrimFunc)
        }
        sizes = {name: len(find_all(module[var].body, tirx.Stmt)) for name, var in kernels.items()}
        largest = sorted(kernels, key=lambda name: sizes[name], reverse=True)[:-1]
        count = PARTS_PER_CORE * self._cores
        for number in range(min(count, len(largest))):
            part = {kernels[name]: module[kernels[name]] for name in largest[number::count]}
            task = self._threads.submit(
                self._compile, tvm.IRModule(part, attrs=module.attrs), f"kernels{number}.o"
            )
            self._objects.append(task)
        rest = {var: one for var, one in module.functions_items() if var.name_hint not in largest}
        return tvm.IRModule(rest, attrs=module.attrs, global_infos=module.global_infos)

    def paths(self) -> Sequence[str]:
        """Wait for the objects. Raises what TVM raised."""
        return [compiled.result() for compiled in self._objects]

    def _compile(self, part: tvm.IRModule, name: str) -> str:
        path = str(self._folder / name)
        with self._context:
            tvm.tirx.build(part, self._target, self._pipeline).write_to_file(path, "o")
        return path
