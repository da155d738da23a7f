"""The search, pure: numbers in, programs out. No TVM, network, database, clock or global randomness."""
