"""Timing that is fair: whoever is compared takes turns, after its results were checked."""
