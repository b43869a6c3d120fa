"""Every command on every page prints the output shown there, in a terminal of 100 columns."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import DOCS
from tests.goldens import is_updating
from tests.readme.test_readme import BLOCK, run_in_terminal

COMMANDS = [(page, block) for page in sorted(DOCS.glob("*.md")) for block in BLOCK.finditer(page.read_text())]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "block"), COMMANDS, ids=[f"{page.stem}: {block['command'][:60]}" for page, block in COMMANDS]
)
def test_command_output_matches_the_page(page: Path, block: re.Match[str]) -> None:
    printed = run_in_terminal(block["command"])
    if is_updating():
        new = f"```console\n$ {block['command']}\n{printed}```"
        page.write_text(page.read_text().replace(block.group(), new))
        return
    assert printed == block["output"]
