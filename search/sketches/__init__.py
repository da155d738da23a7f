"""Sketches: the structure of programs, derived by rules; and what they leave open."""
