"""The soak: a fleet and its service under faults for hours of compressed time. It finds losses and growth."""
