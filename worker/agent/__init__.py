"""The agent: tells the service how the device is, and does what the service answers."""
