"""Start the benchmark, or say which packages are missing on a machine that has only part of them."""

from __future__ import annotations

import signal
import sys
from collections.abc import Sequence

from benchmarks.gpu.requirements import missing_packages


def main(argv: Sequence[str] | None = None) -> int:
    """Return the exit code: 1 if a measurement failed or packages are missing."""
    if missing := missing_packages():
        print(
            f"benchmarks.gpu: it can't start, because this Python lacks {', '.join(missing)}: install "
            "'tunefarm[server,scheduler,worker]', or add these packages to what was copied to this machine",
            file=sys.stderr,
        )
        return 1
    from benchmarks.gpu import command  # imports what may be missing

    return command.main(argv)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that an embedded stack stops with us
    sys.exit(main())
