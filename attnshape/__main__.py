"""Runs the command line: `attnshape …` or `python -m attnshape …`."""

from __future__ import annotations

import gc
import sys


def main() -> None:
    """Run the command line and exit with its status; errors are one paragraph and a hint on standard error."""
    # collecting while torch is imported finds nothing and takes a quarter of the time
    gc.disable()
    try:
        from attnshape.cli.run import run

        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = 130
    # nor is there anything to gain from a last collection of all that torch made, which the interpreter does at exit
    gc.freeze()
    sys.exit(status)


if __name__ == "__main__":
    main()
