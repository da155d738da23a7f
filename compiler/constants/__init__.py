"""Constants of a model: folded, in the ranks that passes want, packed in the order in which they are read."""
