"""What was measured: the best schedules, and the cost models that were trained on it."""
