"""The search as pure functions from numbers to programs: no TVM, network, database, clock or global
randomness."""
