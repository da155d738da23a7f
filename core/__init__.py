"""The dataclasses and enums that all packages share. Nothing here does input or output."""
