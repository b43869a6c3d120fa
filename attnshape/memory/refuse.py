"""Refuses a run that can't fit into memory, before anything of it is allocated."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from attnshape.dims import BY_LETTER, flag_of
from attnshape.errors import AttnshapeError
from attnshape.memory.forecast import Forecast
from attnshape.memory.free import free_memory
from attnshape.paths import display_path
from attnshape.tracing.raw import RawStep

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_LONGEST = 60
_SUGGESTED = 2


def refuse_too_large(forecast: Forecast, device: torch.device) -> None:
    """Raise AttnshapeError where the peak of the run, or of building it on the host, is more than what is free."""
    free = free_memory(device)
    peak = forecast.peak()
    if peak.bytes > free:
        about = "" if peak.known == "proved" else "about "
        results = peak.bytes - peak.parameters - peak.inputs
        parts = [("parameters", peak.parameters), ("inputs", peak.inputs), ("live results", results)]
        shares = ", ".join(f"{name} {_readable(size)}" for name, size in parts if size)
        doubt = "" if peak.known == "proved" else " (an estimate: small runs don't show all of it)"
        raise AttnshapeError(
            f"this run needs at least {about}{_readable(peak.bytes)} at its peak: {shares}{_where(forecast.step)}"
            f"{doubt}; free are {_readable(free)} on {device}",
            _way_out(forecast, free),
        )
    host = torch.device("cpu")
    if device != host and forecast.on_host > free_memory(host):
        raise AttnshapeError(
            f"building the target needs at least {_readable(forecast.on_host)} on the host, before it is moved to "
            f"{device}; free are {_readable(free_memory(host))}",
            "--device meta needs no memory",
        )


def _where(step: RawStep | None) -> str:
    if step is None:
        return ", while it is being built"
    place = step.place
    if place is None:
        return f" at {step.operation}"
    text = " ".join(place.expression.split())
    if len(place.targets) == 1 and place.targets[0] is not None:
        text = f"{place.targets[0]} = {text}"
    short = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return f" at step `{short}` ({display_path(place.file)}:{place.line})"


def _way_out(forecast: Forecast, free: int) -> str:
    smaller = sorted(_smaller(forecast, free), reverse=True)[:_SUGGESTED]
    choices = " or ".join(text for _, text in smaller)
    most = f"at most {choices}" if choices else f"a smaller {' and '.join(_heaviest(forecast))}"
    return f"--device meta needs no memory; or give {most}"


def _heaviest(forecast: Forecast) -> list[str]:
    """Return the flags of the sizes that the peak falls most with; no single one makes the run fit."""
    numbers = forecast.sizes.numbers
    independent = {letter: numbers[letter] for letter in forecast.sizes.independent}
    least = {letter: forecast.bytes_at(forecast.sizes.at({**independent, letter: 1})) for letter in independent}
    return [flag_of(_as_typed(forecast, letter, 1)[0]) for letter in sorted(least, key=least.__getitem__)[:_SUGGESTED]]


def _smaller(forecast: Forecast, free: int) -> Iterator[tuple[float, str]]:
    """Yield for each size that alone can make the run fit how much of it is left, and its flag with that number."""
    sizes = forecast.sizes
    numbers = sizes.numbers
    for letter in sizes.independent:
        fits, fails = 0, numbers[letter]
        while fails - fits > 1:
            middle = (fits + fails) // 2
            chosen = {other: numbers[other] for other in sizes.independent} | {letter: middle}
            try:
                needed = forecast.bytes_at(sizes.at(chosen))
            except AttnshapeError:  # an author's own expression has no value there
                break
            fits, fails = (middle, fails) if needed <= free else (fits, middle)
        if fits:
            rounded = _two_digits(fits)
            shown, size = _as_typed(forecast, letter, rounded)
            flag = f"{BY_LETTER[shown].flag} {size}" if shown in BY_LETTER else f"--dim {shown}={size}"
            yield rounded / numbers[letter], flag


def _as_typed(forecast: Forecast, letter: str, size: int) -> tuple[str, int]:
    """Return the size as the user gives it: a width rather than the width of a head that follows from it."""
    sizes = forecast.sizes
    if sizes.records[letter].origin == "derived":
        for other, expression in sizes.follows.items():
            if letter in expression.symbols and sizes.records[other].origin != "derived":
                return other, expression.evaluate({**sizes.numbers, letter: size})
    return letter, size


def _two_digits(number: int) -> int:
    """Round down to two digits, which is all that a hint needs.

    >>> _two_digits(36721), _two_digits(7)
    (36000, 7)
    """
    unit = int(10 ** max(len(str(number)) - 2, 0))
    return number // unit * unit


def _readable(count: int) -> str:
    """Write a number of bytes, rounded down: with one decimal where it is small.

    >>> _readable(3 * 2**30), _readable(3 * 2**29), _readable(700)
    ('3 GiB', '1.5 GiB', '700 bytes')
    """
    power = min(max(count.bit_length() - 1, 0) // 10, len(_UNITS) - 1)
    tenths = count * 10 >> 10 * power
    number = f"{tenths / 10}" if tenths < 100 and tenths % 10 else f"{count >> 10 * power:,}"
    return f"{number} {_UNITS[power]}"
