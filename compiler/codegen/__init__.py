"""What scheduled modules go through before TVM generates code, which no trace records."""
