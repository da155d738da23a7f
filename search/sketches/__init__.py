"""Sketches: the structure of programs, and their variables."""
