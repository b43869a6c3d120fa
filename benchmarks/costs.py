"""FLOPs of five modules as each tool counts them, over the truth: 2·m·n·k of every product of matrices."""

import importlib.util
import json
import sys

from benchmarks.cost_peer import PEERS, SUBJECTS
from benchmarks.measure import NotMeasuredError, Options, output_of
from benchmarks.ratio import Figures, factor


def run(options: Options) -> list[Figures]:
    """Count with the installed tools, each in a process of its own, and list the missing ones."""
    rows: dict[str, list[str]] = {"truth": [f"{subject.truth:,}" for subject in SUBJECTS.values()]}
    missing: dict[str, str] = {}
    for name, peer in PEERS.items():
        if importlib.util.find_spec(peer.package) is None:
            missing[name] = "not installed"
            continue
        try:
            counted = _counted(name)
        except NotMeasuredError as error:
            missing[name] = str(error)
            continue
        pairs = zip(counted, SUBJECTS.values(), strict=True)
        rows[name] = ["fails" if flops is None else factor(flops / subject.truth) for flops, subject in pairs]
    title = "costs: FLOPs of products over the truth (2 for a multiplication and an addition)"
    return [Figures(title, list(SUBJECTS), rows, missing)]


def _counted(name: str) -> list[int | None]:
    printed = output_of((sys.executable, "-m", "benchmarks.cost_peer", name))
    try:
        return list(json.loads(printed.splitlines()[-1]))
    except (IndexError, ValueError, TypeError) as error:
        raise NotMeasuredError(f"printed no numbers: {error}") from error
