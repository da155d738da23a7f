"""Lower programs to TVM schedules. Each decision becomes schedule primitives, which are recorded as a
trace."""
