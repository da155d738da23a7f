"""Networks by family, each a function that writes its layers into a graph."""
