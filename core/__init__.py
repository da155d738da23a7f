"""The words that every room shares: dataclasses and enums, each defined once. No input or output."""
