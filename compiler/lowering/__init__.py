"""Lower programs to TVM schedules: every decision becomes schedule primitives, recorded as a trace."""
