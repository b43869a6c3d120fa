"""Size symbols to which the author's own annotations give another meaning."""

from __future__ import annotations

import pytest

from attnshape.annotate.exclusions import without_conflicting_symbols
from attnshape.annotate.syntax import parse
from tests.annotate.form_strings import forms_of, rewritten_text, source

HEAD = "from torch import Tensor\nfrom jaxtyping import Float\n\n"


def annotated(own: str) -> tuple[str, list[str]]:
    data = f"{HEAD}def f(q, n: {own}):\n    s = q\n".encode()
    forms = forms_of(data, "f", arguments={"q": "B L D", "n": "L D"}, stores={"s": "L"})
    tree = parse(source(data))
    cleared, left_out = without_conflicting_symbols(tree, [forms])
    return rewritten_text(data, *cleared).decode().splitlines()[3], [
        f"{omission.what}: {omission.why}" for omission in left_out
    ]


@pytest.mark.parametrize(
    ("own", "q", "symbols"),
    [
        ('Float[Tensor, "L D"]', "B L D", ""),
        ('Float[Tensor, "length width"]', "B L D", ""),
        ('Float[Tensor, "D L"]', "B _ _", "D, L"),
        ("\"Float[Tensor, 'D L']\"", "B _ _", "D, L"),
        ('Float[Tensor, "L"]', "B _ D", "L"),
        ('Float[Tensor, "... L"]', "B _ D", "L"),
        ('Float[Tensor, "... D"]', "B L D", ""),
        ('Float[Tensor, "#B n"] | None', "_ L D", "B"),
        ('Float[Tensor, "rows=L _"]', "B L D", ""),
        ('Float[Tensor, "L L*2"]', "B _ D", "L"),
        ("Tensor", "B L D", ""),
        ("'not parsed['", "B L D", ""),
    ],
)
def test_conflicting_symbol_is_not_written(own: str, q: str, symbols: str) -> None:
    line, reported = annotated(own)
    assert f'q: Float[Tensor, "{q}"]' in line
    verb = "mean" if "," in symbols else "means"
    why = f"axes of {symbols} in f: {symbols} {verb} another size in its own annotations"
    assert reported == ([why] if symbols else [])
