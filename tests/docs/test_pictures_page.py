"""The flow chart in docs/pictures.md is the one that its command prints."""

import re

from tests.docs.pages import DOCS
from tests.goldens import is_updating
from tests.readme.test_readme import run_in_terminal

PAGE = DOCS / "pictures.md"


def test_chart_is_the_one_of_its_command() -> None:
    text = PAGE.read_text()
    chart = re.search(r"(?<=```mermaid\n).*?(?=```)", text, re.DOTALL)
    assert chart is not None
    printed = run_in_terminal("attnshape trace --format mermaid").replace("\r\n", "\n")
    if is_updating():
        PAGE.write_text(text[: chart.start()] + printed + text[chart.end() :])
        return
    assert printed == chart[0]
