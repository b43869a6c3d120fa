"""Every code has a page, and all pages have the same form."""

from __future__ import annotations

import ast
import re
import subprocess
import sys

import pytest
from markdown_it import MarkdownIt

from attnshape.checks.rules.pages import FAMILIES, SECTIONS, Page, codes, codes_under, family, page, pages
from attnshape.errors import AttnshapeError

CODES = list(codes())
CLAIMS = re.compile(r'--claim "?([\w-]+)')


def snippet(one: Page, name: str) -> str:
    fenced = one.sections[name]
    assert fenced.startswith("```python\n")
    assert fenced.endswith("\n```")
    return fenced.removeprefix("```python\n").removesuffix("\n```")


def test_pages_are_in_order_of_code() -> None:
    assert [page_.code for page_ in pages()] == sorted(CODES)


@pytest.mark.parametrize("code", CODES)
def test_page_has_all_sections(code: str) -> None:
    one = page(code)
    assert one.markdown.startswith(f"# {code}: {one.title}\n\n## Wrong\n")
    assert one.title
    assert not one.title.endswith(".")
    assert tuple(one.sections) == SECTIONS
    assert all(one.sections.values())
    assert max(map(len, one.markdown.splitlines())) <= 120
    assert re.search(r"By (intervention|reproduced numbers|measurement): ", one.sections["How it is detected"])
    assert "claim" in one.sections["How it is detected"].lower()


@pytest.mark.parametrize("code", CODES)
def test_snippets_are_valid_code_and_differ(code: str) -> None:
    wrong, right = (snippet(page(code), name) for name in ("Wrong", "Right"))
    for text in (wrong, right):
        # a snippet may end a function
        ast.parse("def forward():\n" + "\n".join(f"    {line}" for line in text.splitlines()))
        assert 1 <= len(text.splitlines()) <= 8
    if family(code) == "shape comments" and "Tensor" not in wrong:
        assert wrong != right  # only comments differ
        assert ast.dump(ast.parse(wrong)) == ast.dump(ast.parse(right))
    else:
        assert ast.dump(ast.parse(wrong)) != ast.dump(ast.parse(right))


@pytest.mark.parametrize("code", CODES)
def test_page_is_plain_markdown(code: str) -> None:
    tokens = MarkdownIt("commonmark").parse(page(code).markdown)
    inner = [child.type for token in tokens for child in token.children or []]
    assert {token.type for token in tokens} <= {
        *("heading_open", "heading_close", "paragraph_open", "paragraph_close", "inline", "fence")
    }
    assert {*inner} <= {"text", "code_inline", "softbreak"}
    assert [token.info for token in tokens if token.type == "fence"] == ["python", "python"]


def test_claims_in_pages_are_valid() -> None:
    known = {
        *("causal", "window", "alibi", "tiled-heads", "zero-masked-rows", "seq-first", "rope", "scale"),
        *("visible", "mask", "keep", "lengths", "NAME"),
    }
    named = {claim for page_ in pages() for claim in CLAIMS.findall(page_.sections["How it is detected"])}
    assert named <= known
    assert {"causal", "window", "mask", "rope", "scale"} <= named


def test_code_may_be_in_lower_case() -> None:
    assert page(" as201 ") is page("AS201")


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("AS699", "the family has AS601, AS602, AS603, AS604"),
        ("A201", "did you mean AS201?"),
        ("AS2O1", "did you mean AS201?"),
        ("softmax", "attnshape rule lists all codes"),
        ("", "attnshape rule lists all codes"),
        ("../pages", "attnshape rule lists all codes"),
    ],
)
def test_unknown_code_is_refused_with_a_hint(code: str, hint: str) -> None:
    with pytest.raises(AttnshapeError, match="there is no rule") as caught:
        page(code)
    assert caught.value.hint == hint


def test_families_of_codes() -> None:
    assert {code[:3] for code in CODES} == set(FAMILIES)
    assert family("AS116") == "meaning of axes"
    assert codes_under("as3") == (*(f"AS30{digit}" for digit in range(1, 10)), "AS310", "AS311")
    assert codes_under("AS11") == tuple(f"AS11{digit}" for digit in "123456789")
    assert codes_under("AS") == tuple(CODES)
    assert codes_under("A") == codes_under("") == codes_under("AS00X") == ()


def test_reading_the_pages_does_not_import_torch() -> None:
    script = "import sys\nfrom attnshape.checks.rules.pages import pages\npages()\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
