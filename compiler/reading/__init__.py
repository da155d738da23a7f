"""Workloads of TVM read into the search's own form."""
