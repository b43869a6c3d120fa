"""The factors of the scores that are known mistakes, as numbers at the sizes of a subject."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from attnshape.attention.subject import Subject
from attnshape.errors import AttnshapeError

_VALUES = re.compile(r"width of (v|values?)$")


@dataclass(frozen=True)
class Known:
    """One mistake: the factor that it makes."""

    code: str
    text: str
    value: float
    hint: str


def known_scales(subject: Subject, width: int) -> Iterator[Known]:
    """Yield the known mistakes, the likely ones first."""
    root = "divide by math.sqrt(Dk), the width of one head"
    yield Known(
        "AS203", "1/Dk", 1 / width, "scale once: by 1/sqrt(Dk), where the scores are made or where the queries are"
    )
    for name, number in _widths(subject, width).items():
        code = "AS207" if _VALUES.search(name) else "AS201"
        yield Known(code, f"1/sqrt({name})", 1 / math.sqrt(number), root)
    for letter in ("Lk", "L", "Lq", "Lp", *subject.lengths):
        if letter in subject.numbers:
            yield Known("AS202", f"1/sqrt({letter})", 1 / math.sqrt(subject.numbers[letter]), root)
            yield Known("AS202", f"1/{letter}", 1 / subject.numbers[letter], root)
    if {"Lp", "L"} <= subject.numbers.keys():
        total = subject.numbers["Lp"] + subject.numbers["L"]
        yield Known("AS202", "1/sqrt(Lp+L)", 1 / math.sqrt(total), root)
    yield Known("AS205", "sqrt(Dk)", math.sqrt(width), "divide by math.sqrt(Dk), instead of multiplying")
    yield Known("AS205", "Dk", float(width), "divide by math.sqrt(Dk), instead of multiplying")
    yield Known("AS203", "1/Dk**1.5", width**-1.5, "scale once: by 1/sqrt(Dk)")
    for name, number in _widths(subject, width).items():
        yield Known("AS201", f"1/{name}", 1 / number, root)
        yield Known("AS201", f"1/sqrt(Dk*{name})", 1 / math.sqrt(width * number), root)
        yield Known("AS205", f"sqrt({name})", math.sqrt(number), "divide by math.sqrt(Dk), instead of multiplying")
    for letter in ("H", "Hkv", "B"):
        if subject.numbers.get(letter, 1) > 1:
            yield Known("AS207", f"1/sqrt({letter})", 1 / math.sqrt(subject.numbers[letter]), root)


def expected(subject: Subject, width: int) -> float:
    """Return the scale that is claimed, 1/sqrt(Dk) where none is. Raises AttnshapeError where it is no number."""
    if subject.claims.scale is None:
        return 1 / math.sqrt(width)
    names = {"sqrt": math.sqrt, "math": math, "Dk": width, **subject.numbers}
    try:
        return float(eval(subject.claims.scale, {"__builtins__": {}}, names))
    except Exception as error:  # noqa: BLE001 - a claim is Python of the user's
        raise AttnshapeError(
            f"--claim scale={subject.claims.scale}: {type(error).__name__}: {error}",
            "for example --claim scale=1/sqrt(Dk)",
        ) from None


def _widths(subject: Subject, width: int) -> dict[str, int]:
    """Return the widths that a model may have beside that of one head."""
    found = {}
    if "D" in subject.numbers:
        found["D"] = subject.numbers["D"]
    elif "H" in subject.numbers:
        found["H*Dk"] = subject.numbers["H"] * width
    for name, value in subject.inputs.items():
        if value.ndim >= 2 and value.is_floating_point() and value.shape[-1] not in (*found.values(), width):
            found[f"the width of {name}"] = value.shape[-1]
    return {name: number for name, number in found.items() if number not in (width, 1)}
