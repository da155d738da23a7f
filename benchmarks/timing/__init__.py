"""Fair timing: the contestants take turns, after their results were checked."""
