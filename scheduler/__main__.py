import sys

from sandbox import python_packages
from scheduler.main import main

if __name__ == "__main__":
    # TVM would load an installed PyTorch, which takes seconds and, with CUDA, gigabytes of address space.
    python_packages.keep_out(python_packages.TORCH)
    sys.exit(main(sys.argv[1:]))
