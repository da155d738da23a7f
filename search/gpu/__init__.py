"""The search on GPUs: rules, variables, validity and estimates that CPUs have no use for."""
