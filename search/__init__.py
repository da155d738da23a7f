"""The search, pure: numbers in, programs out. No TVM, no network, no database, no clock, no global randomness."""
