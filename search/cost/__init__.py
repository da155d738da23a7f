"""Cost models: the analytic estimate, its features, and the trees that correct it."""
