"""The soak: a fleet and its service under faults for hours, in compressed time; what is lost, what grows."""
