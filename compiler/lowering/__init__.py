"""Programs become TVM schedules: every decision of a program as schedule primitives, kept as a trace."""
