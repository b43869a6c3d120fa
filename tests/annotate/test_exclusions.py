"""Size symbols that are left out: to which the author's annotations give another meaning, or which can't vary."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from attnshape.annotate.exclusions import without_conflicting_symbols
from attnshape.annotate.syntax import parse
from attnshape.observation import watch
from tests.annotate import running
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


def test_symbols_that_did_not_vary_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "only_ten.py"
    file.write_text("def f(x):\n    if x.shape[0] != 10:\n        raise ValueError\n    return x * 2\n")
    result = running.annotated([running.request(f"{file}:f", "--input", "x: L D")], tmp_path, style="comment")
    assert [omission.what for omission in result.omissions] == ["the symbols of L=10"]
    assert [edit.text for change in result.changes for edit in change.edits] == ["  # x: (_, D)", "  # (_, D)"]


@pytest.mark.parametrize(("kept", "written"), [(slice(None, -1), True), (slice(1, None), False)])
def test_without_all_runs_what_holds_in_the_others_is_written(
    kept: slice, written: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def some(*arguments: object) -> Sequence[watch.ObservedRun]:
        return runs_at(*arguments)[kept]  # type: ignore[arg-type]

    runs_at = watch.runs_at
    monkeypatch.setattr(watch, "runs_at", some)
    file = tmp_path / "doubled.py"
    file.write_text("def f(x):\n    return x * 2\n")
    result = running.annotated([running.request(f"{file}:f", "--input", "x: L D")], tmp_path, style="comment")
    assert bool(result.files) is written
