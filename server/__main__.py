import sys

from server.main import main

sys.exit(main(sys.argv[1:]))
