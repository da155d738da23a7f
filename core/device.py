"""Devices: their fingerprints, which define device classes, and their calibrated profiles."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from core.profile import Profile, assumed_gpu_profile, assumed_profile

# The compute capability whose threads can copy from global to shared memory without waiting.
ASYNC_COPIES_SINCE = 80
# The only compute capability whose warpgroups multiply matrices (`wgmma`).
WARPGROUPS_ON = 90


@dataclass(frozen=True)
class Gpu:
    """Limits of a CUDA device.

    `max_threads` and `registers` (of 32 bits) are limits of a block. A kernel may declare `shared_bytes` of
    shared memory, and a launch may give it `dynamic_shared_bytes`. `capability` is ten times the compute
    capability: 80 for 8.0. A multiprocessor holds `resident_threads` and `resident_blocks` at once, and
    shared memory for all of them. `cuda` is the version of the compiler. `timing` is 1 if kernels are timed
    one by one with their launch, and 2 if they are timed inside a CUDA graph. It is part of the device class,
    so records of both kinds are never compared.
    """

    max_threads: int = 1024
    warp_size: int = 32
    shared_bytes: int = 48 << 10
    registers: int = 64 << 10
    capability: int = 80
    model: str = "unknown"
    cuda: str = "unknown"
    resident_threads: int = 2048
    resident_blocks: int = 32
    resident_shared_bytes: int = 96 << 10
    dynamic_shared_bytes: int = 48 << 10
    timing: int = 1

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not isinstance(value, str) and value <= 0:
                raise ValueError(f"a GPU's {name} must be positive, not {value}")


@dataclass(frozen=True)
class Device:
    """A device's fingerprint: devices with equal fingerprints form one device class.

    Sizes are bytes, caches per core except `l3_bytes`, which all cores share. `target` is the canonical JSON
    of the TVM target that code for this device is generated with. If the device is a GPU, `triple` is the
    host's, `cores` counts multiprocessors, and `vector_bytes` is the widest load of a thread. The first cache
    is then a multiprocessor's shared memory, and the second and third are the cache that all multiprocessors
    share.

    The `profile`, measured by calibration, is not part of the fingerprint: two calibrations of one device
    never agree to the last digit.
    """

    name: str
    triple: str
    mcpu: str
    features: tuple[str, ...]
    cores: int
    vector_bytes: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    toolchain: str
    target: str
    gpu: Gpu | None = None
    profile: Profile | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("cores", "vector_bytes", "l1_bytes", "l2_bytes", "l3_bytes"):
            if getattr(self, name) <= 0:
                raise ValueError(f"a device's {name} must be positive, not {getattr(self, name)}")
        object.__setattr__(self, "features", tuple(self.features))

    @property
    def kind(self) -> str:
        """Either "cpu" or "gpu"."""
        return "gpu" if self.gpu else "cpu"

    @property
    def arch(self) -> str:
        """The processor architecture in the triple, such as x86_64 or aarch64."""
        return self.triple.partition("-")[0]

    @property
    def platform(self) -> str:
        """The platform to build for: the processor architecture and, for a GPU, the version of CUDA."""
        return cuda_platform(self.arch, self.gpu.cuda) if self.gpu else self.arch

    @cached_property
    def key(self) -> str:
        """The key of the device class: a short digest of everything but the name."""
        facts = self._facts()
        del facts["name"]
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def title(self) -> str:
        """The class for messages: the name, which other classes may have too, and the key."""
        return f"{self.name} ({self.key})"

    @cached_property
    def speeds(self) -> Profile:
        """The measured profile, or an assumed one if the device was never calibrated."""
        if self.profile is not None:
            return self.profile
        if self.gpu is not None:
            return assumed_gpu_profile(self.cores)
        return assumed_profile(self.arch, self.features, self.cores)

    @property
    def prefers_narrow_weights(self) -> bool:
        """Whether it multiplies bytes faster by weights of 7 bits than of 8 bits: an x86 CPU without VNNI."""
        is_x86 = self.gpu is None and "avx2" in self.features
        return is_x86 and not {"avx512_vnni", "avx_vnni"}.intersection(self.features)

    def lanes(self, item_bytes: int) -> int:
        """Return how many elements of this size the longest vector holds."""
        return max(self.vector_bytes // item_bytes, 1)

    def to_json(self) -> str:
        """Return the fingerprint as JSON, without the profile."""
        return json.dumps(self._facts(), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Device:
        """Return the device of a fingerprint in JSON. Raises ValueError for an invalid one."""
        try:
            facts = json.loads(text)
            gpu = facts.get("gpu") if isinstance(facts, dict) else None
            return cls(**{**facts, "gpu": Gpu(**gpu)} if gpu else facts)
        except TypeError as error:
            raise ValueError(f"not a device fingerprint: {error}") from error

    def _facts(self) -> dict[str, Any]:
        """Return the fields of the fingerprint."""
        facts = asdict(self)
        del facts["profile"]
        if self.gpu is None:
            del facts["gpu"]  # left out, so that CPUs keep the keys of versions without GPUs
        elif self.gpu.timing == 1:
            del facts["gpu"]["timing"]  # left out, so that GPUs keep the keys of versions without `timing`
        return facts


def cuda_platform(arch: str, cuda: str) -> str:
    """Return the platform of a processor architecture with GPUs, such as x86_64_cuda_13_0."""
    return f"{arch}{_CUDA}{cuda.replace('.', '_')}"


def arch_of(platform: str) -> str:
    """Return the processor architecture of a platform."""
    return platform.partition(_CUDA)[0]


_CUDA = "_cuda_"
