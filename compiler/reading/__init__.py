"""Read TVM workloads into the search's own form, a `Dag`."""
