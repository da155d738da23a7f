"""Better programs from known ones: mutation, crossover, and those of similar workloads."""
