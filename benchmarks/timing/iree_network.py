"""Networks by IREE on the CPU."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.timing.contestants import Arrays, Bind

IMPORTER = "iree.compiler.tools.import_onnx"


@dataclass(frozen=True)
class IreeFile:
    """An ONNX file that IREE compiles for LLVM's processor `cpu` with all optimizations."""

    path: Path
    cpu: str = "host"

    def load(self, threads: int) -> Bind:
        """Raises RuntimeError with the compiler's first error."""
        from iree import runtime
        from iree.compiler.tools.binaries import find_tool

        with tempfile.TemporaryDirectory(prefix="tunefarm-iree-") as folder:
            imported, compiled = Path(folder, "model.mlir"), Path(folder, "model.vmfb")
            _run(sys.executable, "-m", IMPORTER, str(self.path), "-o", str(imported))
            _run(
                find_tool("iree-compile"),
                *(str(imported), "-o", str(compiled), "--iree-opt-level=O3"),
                "--iree-hal-target-device=local",
                "--iree-hal-local-target-device-backends=llvm-cpu",
                f"--iree-llvmcpu-target-cpu={self.cpu}",
            )
            runtime.flags.parse_flags(f"--task_topology_group_count={threads}")
            config = runtime.Config("local-task")
            module = runtime.VmModule.copy_buffer(config.vm_instance, compiled.read_bytes())
        context = runtime.SystemContext(vm_modules=[module], config=config)
        (name,) = (one for one in module.function_names if not one.startswith("__") and "$async" not in one)
        run = context.modules[module.name][name]

        def bind(inputs: Arrays) -> Callable[[], Any]:
            placed = [runtime.asdevicearray(config.device, array) for array in inputs]

            def call() -> Any:
                outputs = run(*placed)
                many = outputs if isinstance(outputs, tuple | list) else [outputs]
                return [one.to_host() for one in many]

            return call

        return bind


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        lines = [line for line in result.stderr.splitlines() if "error" in line]
        raise RuntimeError(f"IREE: {(lines or ['it ended without a message'])[0]}")
