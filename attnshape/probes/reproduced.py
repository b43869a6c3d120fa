"""Whether attention computed independently from queries, keys and values makes the target's own numbers."""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.attention.oracle import Parted, parted, parted_fused
from attnshape.attention.outcome import NotExamined, Outcome, Proved
from attnshape.attention.subject import Subject

CODES: tuple[str, ...] = ()
WHAT = "attention as a whole"


def examine(subject: Subject) -> Iterator[Outcome]:
    """Compute scores, weights and context anew in float64, and compare."""
    if not subject.measured and not subject.fused:
        yield NotExamined(WHAT, "no attention with a softmax was found: only inputs were changed, and results compared")
        return
    verdicts: list[Parted | str | None] = [
        *(parted(one, subject.bench.tolerance) for one in subject.measured),
        *(
            "a mask is of a kind that has no numbers of its own"
            if one.hides_its_mask
            else parted_fused(one, subject.bench.tolerance)
            for one in subject.fused
        ),
    ]
    if all(verdict is None for verdict in verdicts):
        yield Proved("scores, weights and context agree with those computed anew in float64 from what was measured")
    for verdict in dict.fromkeys(verdicts):
        if isinstance(verdict, str):
            yield NotExamined(WHAT, verdict)
        elif verdict is not None:
            where = f"the {verdict.what} part from those computed anew, by up to {verdict.most:.3g}"
            yield NotExamined(WHAT, f"{where}, and no known mistake makes these numbers")
