"""What a program costs: the analytic estimate, what the trees see of it, and the trees that correct it."""
