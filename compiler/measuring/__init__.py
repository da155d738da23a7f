"""Building, verifying and timing candidates and whole models, and measuring what a device can do."""
