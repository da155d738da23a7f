"""Programs: sketches with numbers, as whole populations: their loops, and which of them are legal."""
