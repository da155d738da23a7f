"""Evolution of programs: mutation, crossover, and transfer from similar workloads."""
