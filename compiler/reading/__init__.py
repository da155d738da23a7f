"""Convert TVM workloads to the search's representation, a `Dag`."""
