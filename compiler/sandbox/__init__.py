"""What a stranger's input does to TVM, it does in a child process under limits."""
