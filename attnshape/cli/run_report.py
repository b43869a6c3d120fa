"""The process that reports the attention of a program once that has ended; `attnshape run` starts it."""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from attnshape.cli.output import internal_error, print_error, print_message
from attnshape.cli.progress import Progress
from attnshape.errors import AttnshapeError
from attnshape.model.program import ProgramSummary
from attnshape.options.pyproject import FILE, project_targets
from attnshape.options.write_targets import write_targets
from attnshape.pipelines.run import summarize
from attnshape.programs.store import load
from attnshape.reporters.program import program_text
from attnshape.runtime.processes import package_command

_DEFAULT_WIDTH = 100
_NARROWEST = 40
_LAUNCHERS = ("torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed")
"""Programs that start others in processes of their own, without multiprocessing."""


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
        program = plan["module"] or Path(plan["script"]).name
        if not summary.attentions and program in _LAUNCHERS:
            print_message(f"hint: {program} starts other processes: torchrun … -m attnshape run SCRIPT watches them")
        if plan["save"]:
            save_targets(summary)
        if plan["check"]:
            check_targets(summary)
    except AttnshapeError as error:
        print_error(error)
    except KeyboardInterrupt:
        pass
    except Exception as error:  # noqa: BLE001 - how the program ended must stay visible
        print_error(internal_error(error))
    finally:
        shutil.rmtree(plan["folder"], ignore_errors=True)


def report(summary: ProgramSummary) -> None:
    """Write a summary to standard error: standard output is the program's."""
    is_terminal = sys.stderr.isatty()
    color = is_terminal and not os.environ.get("NO_COLOR")
    sys.stderr.write(program_text(summary, _width() if is_terminal else _DEFAULT_WIDTH, color))
    sys.stderr.flush()


def _width() -> int:
    """Return the number of columns of the terminal of standard error."""
    typed = os.environ.get("COLUMNS", "")
    columns = int(typed) if typed.isdecimal() else os.get_terminal_size(sys.stderr.fileno()).columns
    return max(columns or _DEFAULT_WIDTH, _NARROWEST)


def save_targets(summary: ProgramSummary) -> None:
    """Add the attentions that are verified to pyproject.toml in this folder; targets that it has stay as they are."""
    known = project_targets()
    targets: dict[str, Mapping[str, object]] = {}
    present: list[str] = []
    for one in summary.attentions:
        if one.target is None:
            continue
        same = next((name for name, table in known.items() if table == one.target), None)
        if same is not None:
            present.append(same)
        else:
            targets[_new_name(one.captured.name, {*known, *targets})] = one.target
    written = write_targets(Path(FILE), targets) if targets else []
    if written:
        print_message(f"added to {FILE}: {', '.join(written)}; to trace one: attnshape trace {shlex.quote(written[0])}")
    if present:
        print_message(f"in {FILE} already: {', '.join(present)}")
    if not written and not present:
        print_message(f"nothing was added to {FILE}: no attention is verified")


def _new_name(name: str, taken: Collection[str]) -> str:
    """Return a name for a target that none has yet.

    >>> _new_name("CausalSelfAttention", ["causal-self-attention"])
    'causal-self-attention-2'
    """
    plain = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()
    names = (plain if number == 1 else f"{plain}-{number}" for number in itertools.count(1))
    return next(one for one in names if one not in taken)


def check_targets(summary: ProgramSummary) -> None:
    """Check each attention that is verified, and write the reports to standard error."""
    for one in summary.attentions:
        if not one.command or one.why_not:
            continue
        words = shlex.split(one.command)[2:]
        if words[-2:] == ["--device", "meta"]:
            words = words[:-2]
        command, environment = package_command("attnshape", ["check", *words, "--format", "text"])
        subprocess.run(command, env=environment, stdout=sys.stderr.fileno(), stdin=subprocess.DEVNULL, check=False)


if __name__ == "__main__":
    main()
