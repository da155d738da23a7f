from __future__ import annotations

from dataclasses import replace

from core.compatibility import nearest
from core.device import Device, Gpu
from tests.devices import DEVICE, GPU

AVX2 = replace(DEVICE, features=("avx2",), vector_bytes=32)


def names(asked: Device, **known: Device) -> list[str]:
    found = nearest(asked, [replace(device, name=name) for name, device in known.items()])
    return [device.name for device in found]


def test_a_device_class_runs_code_for_a_subset_of_its_features() -> None:
    arm = replace(DEVICE, triple="aarch64-linux-gnu", features=())
    assert names(DEVICE, itself=DEVICE, avx2=AVX2, arm=arm, gpu=GPU) == ["avx2"]
    assert names(AVX2, wider=DEVICE) == []


def test_the_nearest_device_class_has_the_same_toolchain_and_similar_sizes() -> None:
    fewer, many = replace(DEVICE, cores=1), replace(DEVICE, cores=64)
    older = replace(DEVICE, toolchain="llvm 15")
    assert names(DEVICE, older=older, many=many, fewer=fewer, avx2=AVX2)[-1] == "older"
    assert names(DEVICE, many=many, fewer=fewer) == ["fewer", "many"]


def test_a_gpu_runs_kernels_of_compatible_capabilities() -> None:
    small = replace(GPU, gpu=Gpu(capability=75, shared_bytes=32 << 10))
    odd = replace(GPU, gpu=Gpu(warp_size=64))
    assert names(GPU, small=small, odd=odd, cpu=DEVICE) == ["small"]
    assert names(small, larger=GPU) == []


def test_only_another_gpu_of_capability_90_runs_kernels_of_its_warpgroups() -> None:
    newer, hopper = (replace(GPU, gpu=Gpu(capability=capability)) for capability in (100, 90))
    assert names(newer, hopper=hopper, ampere=GPU) == ["ampere"]
    assert names(hopper, other=replace(hopper, cores=64)) == ["other"]
