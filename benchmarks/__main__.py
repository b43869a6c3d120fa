"""The command line: `python -m benchmarks [NAME …] [--quick]`."""

import argparse
import os
import platform
import shlex
import sys
from importlib.metadata import PackageNotFoundError, version

from benchmarks.measure import Options
from benchmarks.ratio import render
from benchmarks.registry import BENCHMARKS


def _machine() -> str:
    try:
        torch = version("torch")
    except PackageNotFoundError:
        torch = "none"
    return f"Python {platform.python_version()}, torch {torch}, {os.cpu_count()} CPUs, {platform.machine()}"


def main() -> int:
    """Run the given benchmarks and print their tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=sys.modules["benchmarks"].__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which ones: {', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("--quick", action="store_true", help="a quarter of the rounds: to try out, not to quote")
    parser.add_argument(
        "--attnshape",
        metavar="COMMAND",
        default=shlex.join((sys.executable, "-m", "attnshape")),
        help="the command that runs attnshape, to compare another installation (default: this Python's)",
    )
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in BENCHMARKS]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(BENCHMARKS)}")
    options = Options(quick=arguments.quick, attnshape=tuple(shlex.split(arguments.attnshape)))
    print(_machine())
    for name in arguments.names or BENCHMARKS:
        for table in BENCHMARKS[name](options):
            print(f"\n{render(table)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
