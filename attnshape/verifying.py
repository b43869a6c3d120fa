"""From a request to a report on what is written about shapes in the code: comments, docstrings, annotations."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import torch

from attnshape import __version__
from attnshape.ending import foreign_code, reraise_interruption
from attnshape.exploring import explore
from attnshape.inference.small_runs import Doing
from attnshape.inference.variation import Variation
from attnshape.memory.standin import worth_foretelling
from attnshape.paths import installed_package
from attnshape.pipeline import Printed
from attnshape.report import Fact, Report, Unexamined
from attnshape.settings import Settings
from attnshape.sizes import Sizes, resolve
from attnshape.target.find import find_target
from attnshape.target.request import Placement, Request, Target
from attnshape.tracing.isolation import isolated
from attnshape.tracing.output import to_standard_error
from attnshape.tracing.patience import Patience
from attnshape.variables.observe import Run, runs_at
from attnshape.variables.watch import Function
from attnshape.written.verify import Verified, has_claims, verify

_MOST_RUNS = 4


def verify_request(
    request: Request,
    settings: Settings,
    time_limit: float,
    printed: Printed = to_standard_error,
    doing: Doing = lambda words: None,
) -> Report:
    """Return whether what is written about shapes in the traced functions holds; `time_limit` is in seconds.

    Raises AttnshapeError where the request can't be carried out, or the target fails at the sizes given.
    """
    doing("loading the target")
    with printed(), foreign_code(), isolated():
        target = find_target(request)
        sizes = resolve(target.used, target.given, request.own)
        placement = Placement(torch.device("cpu"), torch.float32, settings.seed, settings.train)
        patience = Patience()
        variation = explore(target, sizes, placement, patience, time_limit, doing)
        doing("comparing what is written with what is measured")
        chosen = sizes_to_compare(variation, sizes)
        verified = verify_target(target, chosen, placement, patience)
    return Report(
        attnshape=__version__,
        torch=str(torch.__version__),
        python=platform.python_version(),
        target=target.label,
        command=settings.command,
        seed=settings.seed,
        dtype="float32",
        sizes=dict(sizes.records),
        small_sizes=tuple(dict(numbers) for numbers in chosen),
        runs=verified.runs,
        findings=verified.findings,
        proved=said(verified),
        facts=(Fact(text="no shape is written in the functions that ran"),) if _nothing(verified) else (),
        unexamined=verified.unexamined,
    )


def _nothing(verified: Verified) -> bool:
    return not verified.held and not verified.findings and not verified.unexamined


def not_known(why: str) -> Verified:
    """Return that it isn't known whether what is written holds."""
    return Verified(unexamined=(Unexamined(what="what is written", why=why),))


def sizes_to_compare(variation: Variation | None, sizes: Sizes) -> list[Mapping[str, int]]:
    """Return the sizes to compare at: some of the small ones, and the user's own where they aren't large."""
    small = [numbers for numbers, _ in islice(variation.every, _MOST_RUNS)] if variation is not None else []
    return [*small, *([] if small and worth_foretelling(sizes) else [sizes.numbers])]


def verify_target(
    target: Target, sizes: Sequence[Mapping[str, int]], placement: Placement, patience: Patience
) -> Verified:
    """Return which claims in the source of the functions that run hold at all these sizes, or why it isn't known."""
    try:
        runs, functions = watched(target, sizes, placement, patience)
        if not runs:
            return not_known("the target failed when watched")
        return verify(runs, functions) if functions else Verified(runs=len(runs))
    except BaseException as error:  # noqa: BLE001 - what is written somewhere must not end the check
        reraise_interruption(error)
        return not_known(f"the comparison failed: {type(error).__name__}: {error}")


def watched(
    target: Target, sizes: Sequence[Mapping[str, int]], placement: Placement, patience: Patience
) -> tuple[list[Run], list[Function]]:
    """Return the runs at these sizes and the functions that ran; one run and no functions where these claim nothing."""
    first = runs_at(target, sizes[:1], placement, patience) or runs_at(target, sizes[-1:], placement, patience)
    functions = list(_own(first))
    if not has_claims(functions):
        return first, []
    return [*first, *runs_at(target, sizes[1:], placement, patience)], functions


def said(verified: Verified) -> tuple[str, ...]:
    """Return what is proved by it, in a few words."""
    if not verified.held:
        return ()
    shapes = "shape" if verified.held == 1 else "shapes"
    return (f"{verified.held} written {shapes} {'holds' if verified.held == 1 else 'hold'}",)


def _own(runs: Sequence[Run]) -> Iterable[Function]:
    """Return the functions that ran, of the target's project: not those of installed packages that it uses."""
    functions = list(dict.fromkeys(one.function for run in runs for one in run.invocations))
    # not that of the first function that ran: it may be called by what is collected as garbage meanwhile
    first = functions[0].file if functions else ""
    home = installed_package(next((one.file for one in runs if one.file is not None), first))
    return (one for one in functions if installed_package(one.file) in (None, home))
