"""The GPUs of this machine, by NVIDIA's management library; only the child opens CUDA."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pynvml

from core.worker import Vitals
from system.errors import SettingsError
from worker.agent.health import read_vitals

# The variable with the UUIDs of the GPUs that CUDA shows to a process.
VISIBLE_DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"
DEVICE_TREE = Path("/proc/device-tree/model")
# The first words of Jetson models with GPUs (compute capability 5.3 to 7.2) that CUDA 13 doesn't support.
OLD_JETSONS = (
    *("NVIDIA Jetson Nano", "NVIDIA Jetson TX", "NVIDIA Jetson Xavier", "NVIDIA Jetson AGX Xavier"),
    "Jetson-AGX",
)
ONLY_GPU = "only"


@dataclass(frozen=True)
class VisibleGpu:
    """A GPU, or a slice of a divided one (MIG)."""

    uuid: str
    name: str


def list_gpus() -> list[VisibleGpu]:
    """Return every undivided GPU and every slice of divided ones. Raises SettingsError without a driver."""
    try:
        pynvml.nvmlInit()
        return [
            VisibleGpu(pynvml.nvmlDeviceGetUUID(handle), pynvml.nvmlDeviceGetName(handle))
            for handle in _handles()
        ]
    except pynvml.NVMLError as error:
        mend = "install NVIDIA's driver, or leave out --gpu"
        with contextlib.suppress(OSError):
            if (board := DEVICE_TREE.read_text().rstrip("\0\n")).startswith(OLD_JETSONS):
                mend = (
                    f"CUDA 13 has no code for the GPU of this {board}: leave out --gpu to measure its cores"
                )
        raise SettingsError(f"there is no GPU to measure: {error}; {mend}") from error


def choose_gpu(wanted: int | Literal["only"]) -> VisibleGpu:
    """Return the GPU with this index, or the only one. Raises SettingsError, with the GPUs to choose from."""
    gpus = list_gpus()
    if isinstance(wanted, int):
        if wanted < len(gpus):
            return gpus[wanted]
    elif len(gpus) == 1:
        return gpus[0]
    known = ", ".join(f"{index} ({gpu.name})" for index, gpu in enumerate(gpus)) or "none"
    which = f"has {len(gpus)} GPUs" if wanted == ONLY_GPU else f"has no GPU {wanted}"
    raise SettingsError(f"this machine {which}: start a worker for each with --gpu INDEX, of {known}")


@dataclass
class GpuVitals:
    """Reads the vitals of this machine, and NVML's vitals of the GPU."""

    gpu: VisibleGpu

    def __call__(self) -> Vitals:
        vitals = replace(read_vitals(), temperature_c=None, memory_free_bytes=None)
        with contextlib.suppress(pynvml.NVMLError):
            handle = pynvml.nvmlDeviceGetHandleByUUID(self.gpu.uuid)
            readings: dict[str, Callable[[], Any]] = {
                "memory_free_bytes": lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).free),
                "temperature_c": lambda: float(
                    pynvml.nvmlDeviceGetTemperature(_whole(handle), pynvml.NVML_TEMPERATURE_GPU)
                ),
                "power_w": lambda: pynvml.nvmlDeviceGetPowerUsage(_whole(handle)) / 1e3,
                "driver": lambda: str(pynvml.nvmlSystemGetDriverVersion()),
            }
            for name, read in readings.items():
                with contextlib.suppress(pynvml.NVMLError):
                    vitals = replace(vitals, **{name: read()})
        return vitals


def _handles() -> Iterator[Any]:
    for index in range(pynvml.nvmlDeviceGetCount()):
        handle = pynvml.nvmlDeviceGetHandleByIndex(index)
        if not _has_slices(handle):
            yield handle
            continue
        for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with contextlib.suppress(pynvml.NVMLError_NotFound):
                yield pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)


def _has_slices(handle: Any) -> bool:
    try:
        return bool(pynvml.nvmlDeviceGetMigMode(handle)[0])
    except pynvml.NVMLError_NotSupported:
        return False


def _whole(handle: Any) -> Any:
    """Return the GPU of a slice, because heat and power belong to the whole GPU."""
    try:
        return pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    except pynvml.NVMLError:
        return handle
