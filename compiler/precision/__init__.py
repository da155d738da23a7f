"""Element types: what a model stores in few bits, computed as the device does best."""
