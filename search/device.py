"""What the search, the records and the wire know of a device."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Device:
    """A device's fingerprint: devices with equal fingerprints form one device class.

    Sizes are bytes, caches per core except `l3_bytes`, which all cores share. `target` is the
    canonical JSON of the TVM target that code for this device is generated with.
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

    def __post_init__(self) -> None:
        sizes = ("cores", "vector_bytes", "l1_bytes", "l2_bytes", "l3_bytes")
        for field in sizes:
            if getattr(self, field) <= 0:
                raise ValueError(f"a device's {field} must be positive, not {getattr(self, field)}")
        object.__setattr__(self, "features", tuple(self.features))

    @property
    def key(self) -> str:
        """The device class: a short digest of everything but the human name."""
        facts = asdict(self)
        del facts["name"]
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Device:
        """Raises ValueError when the text is not a device."""
        try:
            return cls(**json.loads(text))
        except TypeError as error:
            raise ValueError(f"not a device fingerprint: {error}") from error
