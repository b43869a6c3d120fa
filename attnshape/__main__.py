"""Runs the command line: `attnshape …` or `python -m attnshape …`."""

from __future__ import annotations

import gc
import sys

from attnshape.runtime.signals import leave, obey_signals


def main() -> None:
    """Run the command line and end the process with its status."""
    obey_signals()
    # collecting while torch is imported finds nothing and takes a quarter of the time
    gc.disable()
    from attnshape.cli.app import run

    leave(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
