"""Common boards and servers with Arm cores: properties that Linux on them doesn't report, and properties for
code that is generated on another machine.

The cache sizes are from the makers' data sheets. A second level that all cores share counts as the third
here, and a core's share of it as the second.
"""

from __future__ import annotations

from dataclasses import dataclass

from core.device import Device

TRIPLE = "aarch64-linux-gnu"
KIB, MIB = 1 << 10, 1 << 20
# NEON's vectors, also where there is SVE: the lengths of TVM's vectors are fixed at compile time.
VECTOR_BYTES = 16


@dataclass(frozen=True)
class Board:
    """`models` are the first words of the device tree's `model`. Sizes are bytes, caches as in Device."""

    name: str
    models: tuple[str, ...]
    mcpu: str
    cores: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    features: tuple[str, ...] = ("asimd",)

    def device(self, toolchain: str, target: str) -> Device:
        """Describe the board as a device, to generate code for it on another machine."""
        return Device(
            name=self.name,
            triple=TRIPLE,
            mcpu=self.mcpu,
            features=self.features,
            cores=self.cores,
            vector_bytes=VECTOR_BYTES,
            l1_bytes=self.l1_bytes,
            l2_bytes=self.l2_bytes,
            l3_bytes=self.l3_bytes,
            toolchain=toolchain,
            target=target,
        )


_DOT = ("asimd", "asimddp")

BOARDS = {
    board.name: board
    for board in (
        Board("raspberry-pi-3", ("Raspberry Pi 3",), "cortex-a53", 4, 32 * KIB, 128 * KIB, 512 * KIB),
        Board(
            "raspberry-pi-4",
            ("Raspberry Pi 4", "Raspberry Pi 400", "Raspberry Pi Compute Module 4"),
            "cortex-a72",
            4,
            32 * KIB,
            256 * KIB,
            MIB,
        ),
        Board(
            "raspberry-pi-5",
            ("Raspberry Pi 5", "Raspberry Pi 500", "Raspberry Pi Compute Module 5"),
            "cortex-a76",
            4,
            64 * KIB,
            512 * KIB,
            2 * MIB,
            _DOT,
        ),
        Board("jetson-nano", ("NVIDIA Jetson Nano",), "cortex-a57", 4, 32 * KIB, 512 * KIB, 2 * MIB),
        Board(
            "jetson-orin-nano",
            ("NVIDIA Jetson Orin Nano",),
            "cortex-a78",
            6,
            64 * KIB,
            256 * KIB,
            4 * MIB,
            _DOT,
        ),
        Board(
            "jetson-agx-orin",
            ("NVIDIA Jetson AGX Orin", "Jetson AGX Orin"),
            "cortex-a78",
            12,
            64 * KIB,
            256 * KIB,
            6 * MIB,
            _DOT,
        ),
        Board("graviton2", (), "neoverse-n1", 64, 64 * KIB, MIB, 32 * MIB, _DOT),
        Board("graviton3", (), "neoverse-v1", 64, 64 * KIB, MIB, 32 * MIB, _DOT),
        Board("graviton4", (), "neoverse-v2", 96, 64 * KIB, 2 * MIB, 36 * MIB, _DOT),
    )
}


def find_board(model: str) -> Board | None:
    """Return the board with this `model` in its device tree; None for other models."""
    matches = (
        (len(prefix), board)
        for board in BOARDS.values()
        for prefix in board.models
        if model.startswith(prefix)
    )
    return max(matches, key=lambda match: match[0], default=(0, None))[1]
