"""Candidates and whole models are built, verified and timed."""
