"""The agent: it reports the device's state to the service, and works on leases."""
