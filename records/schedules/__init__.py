"""Records of measurements, the best schedules among them, and the cost models trained on them."""
