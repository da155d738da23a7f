"""Benchmarks of tunefarm beside its peers. `python -m benchmarks` lists them."""
