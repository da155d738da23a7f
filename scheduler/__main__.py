import sys

from scheduler.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
