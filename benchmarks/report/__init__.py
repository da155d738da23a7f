"""The tables and plots of docs/benchmarks.md, from files of figures."""
