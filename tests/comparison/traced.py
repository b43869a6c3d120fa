"""Traces of the modules in versions.py and of edited copies of the examples."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import attnshape
from attnshape import Difference, Trace
from tests.comparison import versions

EXAMPLES = Path(__file__).parents[2] / "examples"
ChangeRows = list[tuple[str, str, tuple[str, ...]]]


@cache
def version(name: str, **how: object) -> Trace:
    """Return the trace of a version; traces are immutable."""
    inputs = {"hidden" if name == "Renamed" else "x": "B L D"}
    return attnshape.trace(getattr(versions, name), init="D, H", inputs=inputs, **how)  # type: ignore[arg-type]


def example(folder: Path, file: str, name: str, *edits: tuple[str, str], **how: object) -> Trace:
    """Return the trace of an example's copy with each text, which must be present, replaced."""
    source = (EXAMPLES / file).read_text()
    for text, other in edits:
        assert text in source
        # names are replaced as whole words: `masked`, not `masked_fill`
        source = re.sub(rf"\b{text}\b", other, source) if text.isidentifier() else source.replace(text, other)
    path = folder / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)
    return attnshape.trace(f"{path}:{name}", init="D, H", inputs={"x": "B L D"}, **how)  # type: ignore[arg-type]


def change_rows(difference: Difference) -> ChangeRows:
    """Return each displayed step: added, removed or changed, its expression, and the changed facts."""
    found: ChangeRows = []
    for change in difference.steps:
        if change.old is None and change.new is not None:
            found.append(("added", change.new.expression, ()))
        elif change.new is None and change.old is not None:
            found.append(("removed", change.old.expression, ()))
        elif change.shown and change.new is not None:
            facts = [*change.changed, *(fact for output in change.outputs for fact in output.changed)]
            found.append(("changed", change.new.expression, tuple(dict.fromkeys(facts))))
    return found


def swapped_rows(rows: ChangeRows) -> ChangeRows:
    """Return the added and removed steps that the reverse comparison must have."""
    other = {"added": "removed", "removed": "added"}
    return sorted((other[how], text, facts) for how, text, facts in rows if how in other)
