"""Evolution of programs: mutation, and transfer from similar workloads."""
