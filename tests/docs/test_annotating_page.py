"""docs/annotating.md: it has commands for each use, and names every option of the command."""

import inspect
from typing import get_args

from attnshape.cli.annotate import annotate
from attnshape.options.spec import Existing, StyleName
from tests.docs.pages import DOCS
from tests.readme.test_readme import BLOCK

PAGE = DOCS / "annotating.md"
CONSOLE = list(BLOCK.finditer(PAGE.read_text()))


def test_page_has_examples_of_each_use() -> None:
    commands = " ".join(block["command"] for block in CONSOLE)
    assert len(CONSOLE) >= 4
    assert all(flag in commands for flag in ("--style comment", "--existing check", "--enforce"))
    assert "Traceback" not in PAGE.read_text()


def test_page_names_every_option() -> None:
    text = PAGE.read_text()
    shared = inspect.signature(annotate).parameters
    own = list(shared)[list(shared).index("grad") + 1 :]
    missing = [name for name in own if f"--{name.replace('_', '-')}" not in text and name != "output"]
    assert missing == []
    assert all(name in text for name in (*get_args(Existing), *get_args(StyleName)))
