"""The derivation rules of sketches, and the search spaces that they generate.

Examples show loops before and after a rule. `for i, j` is two loops, and `i0, i1` number the parts of a split
axis.
"""
