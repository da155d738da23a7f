"""Other ways to compute an operator than the one that a model was imported with: a level above sketches.

A variant rewrites operators of the graph. Each subgraph that it changes becomes another workload with the
same inputs and outputs. Both are tuned; the faster one goes into the published model.
"""
