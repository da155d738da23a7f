"""Networks by family. Each is a function that adds its layers to a graph."""
