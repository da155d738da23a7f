"""Replaces a module of `compiler.children` that was compromised."""

import json
import sys

from tests.integration.sandbox import attacker

if __name__ == "__main__":
    told = json.load(sys.stdin)
    found = attacker.report(told)
    print(json.dumps(found))
