"""The processes that candidates run in, and what they are kept from."""
