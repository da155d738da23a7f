"""Element types: compute narrow types in the way that is fastest on the device."""
