"""The derivation rules of sketches, and the search space that they span."""
