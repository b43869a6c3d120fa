"""Runs the command line: `attnshape …` or `python -m attnshape …`."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import sys
import threading


def main() -> None:
    """Run the command line and end the process with its status."""
    # collecting while torch is imported finds nothing and takes a quarter of the time
    gc.disable()
    try:
        from attnshape.cli.run import run

        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = 130
    _leave(status)


def _leave(status: int) -> None:
    """End the process at once: taking torch's modules apart, as the interpreter does, takes longer than a trace.

    What the traced code has left to do at exit is done; where its threads still run, the interpreter ends as usual.
    """
    gc.freeze()
    if threading.active_count() > 1:
        sys.exit(status)
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
