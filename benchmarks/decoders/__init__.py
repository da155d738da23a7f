"""Tokens per second of decoders that keep their cache, beside other runtimes."""
