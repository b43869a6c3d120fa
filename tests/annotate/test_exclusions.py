"""Letters by which an author's own annotations mean another size than what would be written."""

from __future__ import annotations

import pytest

from attnshape.annotate.exclusions import without_conflicting_symbols
from attnshape.annotate.syntax import parse
from tests.annotate.form_strings import known, source, written

HEAD = "from torch import Tensor\nfrom jaxtyping import Float\n\n"


def annotated(own: str) -> tuple[str, list[str]]:
    data = f"{HEAD}def f(q, n: {own}):\n    s = q\n".encode()
    forms = known(data, "f", arguments={"q": "B L D", "n": "L D"}, stores={"s": "L"})
    tree = parse(source(data))
    cleared, left_out = without_conflicting_symbols(tree, [forms])
    return written(data, *cleared).decode().splitlines()[3], [f"{one.what}: {one.why}" for one in left_out]


@pytest.mark.parametrize(
    ("own", "q", "letters"),
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
def test_a_letter_of_another_size_is_not_written(own: str, q: str, letters: str) -> None:
    line, said = annotated(own)
    assert f'q: Float[Tensor, "{q}"]' in line
    verb = "mean" if "," in letters else "means"
    why = f"axes of {letters} in f: {letters} {verb} another size in its own annotations"
    assert said == ([why] if letters else [])
