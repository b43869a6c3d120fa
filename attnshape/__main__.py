"""Runs the command line: `attnshape …` or `python -m attnshape …`."""

from __future__ import annotations

import gc
import sys

from attnshape.runtime.supervisor import serve, supervise
from attnshape.runtime.worker import Death


def main() -> None:
    """Run the command line in a worker process, and end this one with its status."""
    if sys.argv[1:2] == ["run"]:
        # this process itself becomes the program, with its signals, its terminal and its exit status
        sys.exit(_work())
    serve(_work)
    try:
        status = supervise(_work, _report)
    except OSError as error:
        print(f"error: no process can be started for the work: {error.strerror}", file=sys.stderr)  # noqa: T201 - what prints errors otherwise may need more than there is
        print("hint: see whether the limits of this process suffice: ulimit -a", file=sys.stderr)  # noqa: T201 - likewise
        status = 2
    sys.exit(status)


def _work() -> int:
    # collecting while torch is imported finds nothing and takes a quarter of the time
    gc.disable()
    from attnshape.cli.app import run

    return run(sys.argv[1:])


def _report(death: Death) -> None:
    from attnshape.cli.output import print_error

    print_error(death.error)


if __name__ == "__main__":
    main()
