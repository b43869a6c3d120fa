from __future__ import annotations

import pytest

from attnshape.checks.rules.pages import codes
from attnshape.checks.suppressions import Selection
from attnshape.errors import AttnshapeError
from attnshape.options.flags import flag_syntax


def kept(select: list[str], ignore: list[str]) -> set[str]:
    selection = Selection.parse(select, ignore)
    return {code for code in codes() if selection.keeps(code)}


def under(*prefixes: str) -> set[str]:
    return {code for code in codes() if code.startswith(prefixes)}


@pytest.mark.parametrize(
    ("select", "ignore", "expected"),
    [
        ([], [], under("AS")),
        (["AS"], [], under("AS")),
        (["ALL"], [], under("AS")),
        (["all"], ["ALL"], set()),
        (["AS2"], [], under("AS2")),
        (["AS2,AS301"], [], under("AS2") | {"AS301"}),
        (["AS2", " as301 , AS9"], [], under("AS2", "AS9") | {"AS301"}),
        (["AS11"], [], under("AS11")),
        ([], ["AS2"], under("AS") - under("AS2")),
        ([], ["AS204,AS207"], under("AS") - {"AS204", "AS207"}),
        # the longer prefix wins, whichever flag it is given to
        (["AS201"], ["AS2"], {"AS201"}),
        (["AS2"], ["AS201"], under("AS2") - {"AS201"}),
        (["AS1", "AS111"], ["AS11"], (under("AS1") - under("AS11")) | {"AS111"}),
        # of equal prefixes, --ignore wins
        (["AS201"], ["AS201"], set()),
        (["AS2"], ["AS2"], set()),
    ],
)
def test_selected_codes(select: list[str], ignore: list[str], expected: set[str]) -> None:
    assert kept(select, ignore) == expected


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("AS29", f"the family has {', '.join(sorted(under('AS2')))}"),
        ("XY7", "attnshape rule lists all codes"),
        ("AS09", "the family has AS001, AS002, AS003, AS004"),
        ("scores", "attnshape rule lists all codes"),
        ("", "attnshape rule lists all codes"),
        ("A", "attnshape rule lists all codes"),
        ("S201", "did you mean AS201?"),
    ],
)
@pytest.mark.parametrize("field", ["select", "ignore"])
def test_unknown_code_is_refused(word: str, hint: str, field: str) -> None:
    given = [f"AS1,{word}"]
    with pytest.raises(AttnshapeError) as caught:
        Selection.parse(given, []) if field == "select" else Selection.parse([], given)
    assert caught.value.message == f"{field} names {word!r}, which is neither a code nor a family"
    assert caught.value.hint == hint
    assert caught.value.written_in(flag_syntax).message.startswith(f"--{field} names")
