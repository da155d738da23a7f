"""What deploying a compiled model costs: sizes, loading, overhead of a call, torch.compile."""
