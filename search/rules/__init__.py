"""The derivation rules of sketches, and the search spaces that they generate.

Examples show loops before a rule and after it. `for i, j` is two loops, and indices such as `i0, i1` number
the parts that an axis is split into.
"""
