"""Populations of programs: their values, loops, resources and validity."""
