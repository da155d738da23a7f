"""Workers: what they report becomes state, and the work that they are given."""
