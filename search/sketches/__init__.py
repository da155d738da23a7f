"""Sketches: the structure of programs, and the variables that it leaves open."""
