"""The kinds of stages: their variables, which values of these are valid, and the estimate of their cost."""
