"""The kinds of children, and the files, devices and groups that each may use."""

from __future__ import annotations

from dataclasses import dataclass

# Device nodes that every program may need.
COMMON_DEVICES = ("null", "zero", "full", "random", "urandom")
# Device nodes of NVIDIA's and AMD's GPUs, of Jetson boards and of WSL.
GPU_DEVICES = ("nvidia*", "dri", "kfd", "nvmap", "nvhost-*", "nvgpu", "dxg")
# Groups that own the nodes of GPUs and other accelerators.
GPU_GROUPS = ("video", "render")


@dataclass(frozen=True)
class ChildKind:
    """One kind of child.

    `subject` begins the sentences about its gaps. `devices` are patterns of nodes below /dev. If the parent
    is root, the child runs as another user, with the additional `groups`.
    """

    name: str
    subject: str
    devices: tuple[str, ...] = COMMON_DEVICES
    groups: tuple[str, ...] = ()


COMPILE = ChildKind("compile child", "the compiler")
MEASURE = ChildKind("measuring child", "measured code")
MEASURE_GPU = ChildKind(
    "measuring child of a GPU", "measured code", (*COMMON_DEVICES, *GPU_DEVICES), GPU_GROUPS
)
BUILD = ChildKind("builder", "the builder")
KINDS = (COMPILE, MEASURE, MEASURE_GPU, BUILD)
