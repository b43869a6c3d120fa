"""Reports built by hand: realistic ones, and one with every field that can hold a text."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from attnshape.model.behaviour import KeyPattern
from attnshape.model.report import Fact, Finding, NotChecked, Pattern, Report
from attnshape.model.trace import Size, Source

_DRAWN = 1000
"""Of a larger pattern a page has no picture."""
FILE = "model.py"
SOURCE = """\
import math
import torch


def attend(q, k, v, mask, D):
    scores = q @ k.transpose(-2, -1) / math.sqrt(D)
    scores = torch.where(
        mask, scores, -10.0
    )
    weights = scores.softmax(dim=-1)
\treturn weights @ v
"""
SMALL_SIZES = ({"B": 5, "H": 7, "L": 11, "D": 91}, {"B": 7, "H": 5, "L": 13, "D": 55})


def read_lines(file: str) -> Sequence[str]:
    """Return the lines of the only file."""
    return SOURCE.splitlines(keepends=True) if file == FILE else ()


def report_of(*findings: Finding, **fields: object) -> Report:
    defaults: dict[str, object] = {
        "attnshape": "0.1.0",
        "torch": "2.13.0",
        "python": "3.11.7",
        "target": "model.py:attend",
        "command": "attnshape check model.py:attend",
        "seed": 0,
        "dtype": "float64",
        "sizes": {"B": Size(2, "default")},
        "small_sizes": SMALL_SIZES,
        "runs": 38,
        "findings": findings,
    }
    return Report(**(defaults | fields))  # type: ignore[arg-type]


SCALE = Finding(
    code="AS201",
    message="scores are scaled by 1/sqrt(D) = 0.105, expected 1/sqrt(Dk) = 0.277",
    source=Source(FILE, 6, 14, "attend"),
    expression="q @ k.transpose(-2, -1) / math.sqrt(D)",
    hint="divide by math.sqrt(Dk)",
    shown="reproduced",
    evidence="1/sqrt(D) gives the same scores at both sizes",
)
FILL = Finding(
    code="AS405",
    message="masked scores become -10, which leaves masked keys a weight of 4.5e-05",
    source=Source(FILE, 7, 14, "attend"),
    expression="torch.where(\n        mask, scores, -10.0\n    )",
    hint='fill with float("-inf")',
    shown="intervention",
    evidence="changed token 3 of v, which mask hides",
)
NOWHERE = Finding(
    code="AS901",
    message="dropout is active in eval mode",
    source=None,
    expression="",
    hint="give training=self.training",
    shown="intervention",
    evidence="two seeds give two outputs",
)
CAUSAL = Pattern(output="output", input="x", queries="Lq", keys="L", rows=("#..", "##.", "###"))


def two_findings() -> Report:
    return report_of(
        SCALE,
        FILL,
        command='attnshape check model.py:attend --input "q: B H L Dk" --input "k: B H L Dk" --claim mask=keep',
        claims=("mask=keep",),
        claim_outcomes={"mask=keep": "contradicted"},
        facts=(Fact(text="attends to every position"), Fact(text="scale 1/sqrt(D)", source=SCALE.source)),
        verified=("batch elements apart", "softmax over the keys", "weights sum to one"),
        not_checked=(NotChecked(what="causality", why="not claimed"), NotChecked(what="gradients", why="")),
        suppressed=(NOWHERE,),
        patterns=(CAUSAL,),
    )


def every_level() -> Report:
    """A report with a finding of each level."""
    warning = replace(FILL, code="AS001", level="warning", message="`mask` is documented as (B, L), but has shape (L,)")
    notice = replace(SCALE, code="AS204", level="notice", message="scores are not scaled")
    return report_of(SCALE, warning, notice, notice)


def no_findings() -> Report:
    return report_of(
        runs=1,
        verified=("batch elements apart", "softmax over the keys"),
        not_checked=(NotChecked(what="masks", why="none given"),),
        patterns=(CAUSAL,),
    )


def incomplete() -> Report:
    """A report without findings, of which a claim is undecided."""
    why = "the code has nothing that it could be compared with"
    return report_of(
        claims=("causal", "window=4"),
        claim_outcomes={"causal": "verified", "window=4": "undecided"},
        verified=("no query attends to the future",),
        not_checked=(NotChecked(what="the claim window=4", why=why, required=True),),
    )


def nothing_examined() -> Report:
    return report_of(NOWHERE, runs=0, small_sizes=(), command="")


def every_text() -> Report:
    """A report that has every field that can hold a text."""
    text = "x"
    source = Source(text, 1, 1, text)
    finding = replace(NOWHERE, source=source, expression=text)
    return report_of(
        finding,
        found=text,
        sizes={text: Size(2, "derived", text)},
        small_sizes=({text: 2},),
        claims=(text,),
        claim_outcomes={text: "verified"},
        facts=(Fact(text=text, source=source),),
        verified=(text,),
        not_checked=(NotChecked(what=text, why=text),),
        suppressed=(finding,),
        patterns=(Pattern(output=text, input=text, queries=text, keys=text, rows=(text[:_DRAWN], text[:_DRAWN])),),
        visible=(KeyPattern(attention=text, part=text, queries=text, keys=text, rows=(text[:_DRAWN], text[:_DRAWN])),),
    )
