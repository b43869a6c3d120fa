"""The process that reports the attention of a program once that has ended; `attnshape run` starts it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from typing import Any

from attnshape.cli.output import print_error
from attnshape.cli.progress import Progress
from attnshape.errors import AttnshapeError
from attnshape.model.program import ProgramSummary
from attnshape.pipelines.run import summarize
from attnshape.programs.store import load
from attnshape.reporters.program import program_text


def main() -> None:
    """Report what is in the folder of the plan, on standard error, and remove the folder."""
    plan: dict[str, Any] = json.loads(sys.argv[1])
    try:
        captures = load(plan["folder"])
        if all(one.rank for one in captures) and os.environ.get("RANK", "0") != "0":
            return  # the process of rank 0 reports
        with Progress() as progress:
            summary = summarize(captures, progress)
        report(summary)
        if plan["save"]:
            save_targets(summary)
        if plan["check"]:
            check_targets(summary)
    except AttnshapeError as error:
        print_error(error)
    except KeyboardInterrupt:
        pass
    finally:
        shutil.rmtree(plan["folder"], ignore_errors=True)


def report(summary: ProgramSummary) -> None:
    """Write a summary to standard error: standard output is the program's."""
    is_terminal = sys.stderr.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else 100
    sys.stderr.write(program_text(summary, width, color=is_terminal and not os.environ.get("NO_COLOR")))
    sys.stderr.flush()


def save_targets(summary: ProgramSummary) -> None:
    """Write the attentions that are verified to pyproject.toml of this folder, as targets."""


def check_targets(summary: ProgramSummary) -> None:
    """Check each attention that is verified, and write the reports to standard error."""
    for one in summary.attentions:
        if not one.command:
            continue
        words = shlex.split(one.command)[2:]
        if words[-2:] == ["--device", "meta"]:
            words = words[:-2]
        command = [sys.executable, "-m", "attnshape", "check", *words, "--format", "text"]
        subprocess.run(command, stdout=sys.stderr.fileno(), stdin=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    main()
