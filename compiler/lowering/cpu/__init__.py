"""Lower programs for CPUs: parallel outer loops, vectorized and unrolled register tiles inside."""
