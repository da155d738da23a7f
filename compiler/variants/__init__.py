"""Other ways to compute a model's operators than the imported ones: a level above sketches.

A variant rewrites operators of the graph. Each subgraph that it changes becomes another workload with the
same inputs and outputs. Both are tuned; the faster one goes into the published model.
"""
