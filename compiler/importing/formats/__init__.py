"""Readers of the formats that models come in. Each gives a `ModelFile`; `reading.read_model` tells which."""
