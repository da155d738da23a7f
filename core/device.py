"""What the search, the records and the wire know of a device."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from core.profile import Profile, assumed


@dataclass(frozen=True)
class Gpu:
    """What a CUDA device allows: threads and 32-bit registers of a block, threads of a warp, bytes of shared
    memory that a kernel may declare, and the compute capability, ten times its number (80 for 8.0)."""

    max_threads: int = 1024
    warp_size: int = 32
    shared_bytes: int = 48 << 10
    registers: int = 64 << 10
    capability: int = 80

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value <= 0:
                raise ValueError(f"a GPU's {name} must be positive, not {value}")


@dataclass(frozen=True)
class Device:
    """A device's fingerprint: devices with equal fingerprints form one device class.

    Sizes are bytes, caches per core except `l3_bytes`, which all cores share. `target` is the
    canonical JSON of the TVM target that code for this device is generated with. Of a device with a `gpu`,
    the cores are its multiprocessors and `vector_bytes` the widest load of a thread.

    The `profile` is what its calibration measured. It is no part of the fingerprint: two calibrations of one
    device never agree to the last digit.
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
        sizes = ("cores", "vector_bytes", "l1_bytes", "l2_bytes", "l3_bytes")
        for name in sizes:
            if getattr(self, name) <= 0:
                raise ValueError(f"a device's {name} must be positive, not {getattr(self, name)}")
        object.__setattr__(self, "features", tuple(self.features))

    @property
    def kind(self) -> str:
        """ "cpu" or "gpu"."""
        return "gpu" if self.gpu else "cpu"

    @property
    def machine(self) -> str:
        """What its processor is called in the triple, such as x86_64 or aarch64."""
        return self.triple.partition("-")[0]

    @property
    def key(self) -> str:
        """The device class: a short digest of everything but the human name."""
        facts = self._facts()
        del facts["name"]
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def speeds(self) -> Profile:
        """The profile, or what is assumed of a device that wasn't calibrated."""
        return self.profile or assumed(self.machine, self.features, self.cores)

    def lanes(self, item_bytes: int) -> int:
        """How many elements of this size the longest vector holds."""
        return max(self.vector_bytes // item_bytes, 1)

    def to_json(self) -> str:
        """The fingerprint."""
        return json.dumps(self._facts(), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Device:
        """Raises ValueError when the text is not a device."""
        try:
            facts = json.loads(text)
            gpu = facts.get("gpu") if isinstance(facts, dict) else None
            return cls(**{**facts, "gpu": Gpu(**gpu)} if gpu else facts)
        except TypeError as error:
            raise ValueError(f"not a device fingerprint: {error}") from error

    def _facts(self) -> dict[str, Any]:
        """Every field of the fingerprint; CPUs are described as they were before there were GPUs."""
        facts = asdict(self)
        del facts["profile"]
        if self.gpu is None:
            del facts["gpu"]
        return facts
