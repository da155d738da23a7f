"""Cost models: the analytic estimate, the features taken from it, and the trees that correct it."""
