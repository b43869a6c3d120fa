"""How much memory is free, and the error for a run that needs more."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnshape.cost.estimate import PeakEstimate
from attnshape.dims.symbols import size_option
from attnshape.errors import AttnshapeError, Option, Text
from attnshape.model.formatting import format_bytes
from attnshape.runtime.files import display_path
from attnshape.runtime.free_memory import free_memory
from attnshape.tracing.raw import RawStep

_LONGEST = 60
_SUGGESTED = 2


def refuse_too_large(estimate: PeakEstimate, device: torch.device) -> None:
    """Raise AttnshapeError if the peak of the run, or of building it on the host, is more than what is free."""
    free, host = free_memory(device), torch.device("cpu")
    peak = estimate.peak()
    if peak.bytes > free:
        uncertain = peak.known == "estimate"
        results = peak.bytes - peak.parameters - peak.inputs
        parts = [("parameters", peak.parameters), ("inputs", peak.inputs), ("live results", results)]
        shares = ", ".join(f"{name} {format_bytes(size)}" for name, size in parts if size)
        raise AttnshapeError(
            f"this run needs at least {'about ' * uncertain}{format_bytes(peak.bytes)} at its peak, "
            f"{_where(estimate.step)}: {shares}; only {format_bytes(free)} are free on {device}"
            f"{' (an estimate: small runs do not show all of it)' * uncertain}",
            _hint(estimate, free),
        )
    if device != host and estimate.bytes_on_host > free_memory(host):
        raise AttnshapeError(
            f"building the target needs at least {format_bytes(estimate.bytes_on_host)} on the host before it is moved "
            f"to {device}; only {format_bytes(free_memory(host))} are free",
            (Option("device", "meta"), " needs no memory"),
        )


def _where(step: RawStep | None) -> str:
    if step is None:
        return "while the target is built"
    place = step.location
    if place is None:
        return f"at {step.operation}"
    text = " ".join(place.expression.split())
    if len(place.targets) == 1 and place.targets[0] is not None:
        text = f"{place.targets[0]} = {text}"
    short = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return f"at step `{short}` ({display_path(place.file)}:{place.line})"


def _hint(estimate: PeakEstimate, free: int) -> Text:
    """Return sizes at which the run fits; where none does alone, the sizes that the peak depends on most."""
    meta = Option("device", "meta")
    smaller = sorted(_smaller(estimate, free), key=lambda pair: pair[0], reverse=True)[:_SUGGESTED]
    if smaller:
        options = [part for _, option in smaller for part in (" or ", option)][1:]
        return (meta, " needs no memory; or give at most ", *options)
    numbers = estimate.sizes.numbers
    independent = {symbol: numbers[symbol] for symbol in estimate.sizes.independent}
    least = {symbol: estimate.bytes_at(estimate.sizes.at({**independent, symbol: 1})) for symbol in independent}
    heaviest = sorted(least, key=least.__getitem__)[:_SUGGESTED]
    options = [part for symbol in heaviest for part in (" and ", size_option(_as_typed(estimate, symbol, 1)[0]))][1:]
    return (meta, " needs no memory; or give a smaller ", *options)


def _smaller(estimate: PeakEstimate, free: int) -> Iterator[tuple[float, Option]]:
    """Yield for each size that alone can make the run fit how much of it is left, and the size to give."""
    sizes = estimate.sizes
    numbers = sizes.numbers
    for symbol in sizes.independent:
        fits, fails = 0, numbers[symbol]
        while fails - fits > 1:
            middle = (fits + fails) // 2
            chosen = {other: numbers[other] for other in sizes.independent} | {symbol: middle}
            try:
                needed = estimate.bytes_at(sizes.at(chosen))
            except AttnshapeError:  # an author's own expression has no value there
                break
            fits, fails = (middle, fails) if needed <= free else (fits, middle)
        if fits:
            rounded = _two_digits(fits)
            shown, size = _as_typed(estimate, symbol, rounded)
            yield rounded / numbers[symbol], size_option(shown, size)


def _as_typed(estimate: PeakEstimate, symbol: str, size: int) -> tuple[str, int]:
    """Return the size as the user gives it: a width rather than the width of a head that follows from it."""
    sizes = estimate.sizes
    if sizes.records[symbol].origin == "derived":
        for other, expression in sizes.follows.items():
            if symbol in expression.symbols and sizes.records[other].origin != "derived":
                return other, expression.evaluate({**sizes.numbers, symbol: size})
    return symbol, size


def _two_digits(number: int) -> int:
    """Round down to two digits, which is all that a hint needs.

    >>> _two_digits(36721), _two_digits(7)
    (36000, 7)
    """
    unit = int(10 ** max(len(str(number)) - 2, 0))
    return number // unit * unit
