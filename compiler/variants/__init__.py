"""Other ways to compute an operator of a model, beside the one that it was imported as: a level above sketches.

A variant rewrites operators of the graph. Each subgraph that it changes becomes another workload with the same
inputs and outputs, which is tuned beside the first; the faster of the two goes into the published model.
"""
