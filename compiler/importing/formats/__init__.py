"""Readers of models' formats. Each returns a `ModelFile`; `reading.read_model` chooses the reader."""
