"""Programs for CPUs: parallel chunks outside, vectors and register tiles inside."""
