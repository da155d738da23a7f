"""Lower programs for CUDA GPUs. Every nest becomes a kernel, bound to blocks and threads."""
