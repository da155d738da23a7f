"""Programs for CUDA GPUs: every nest becomes a kernel, bound to blocks and threads."""
