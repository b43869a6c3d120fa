"""Comments in the source that silence findings: `# attnshape: ignore[AS201]`, or every code without brackets."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attnshape.reading import ReadLines, source_lines
from attnshape.report import Finding
from attnshape.selecting import Selection

_COMMENT = re.compile(r"#\s*attnshape:\s*ignore(?:\s*\[(?P<codes>[^\[\]]*)\]|(?!\s*\[|[\w-]))", re.IGNORECASE)
_BROKEN = (tokenize.TokenError, SyntaxError)


def split(
    findings: Iterable[Finding], selection: Selection, read_lines: ReadLines = source_lines
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Return the findings that count, and those that the selection or a comment in the source silences."""
    kept: list[Finding] = []
    silenced: list[Finding] = []
    files: dict[str, Mapping[int, tuple[str, ...]]] = {}
    for finding in findings:
        counts = selection.keeps(finding.code)
        if counts and finding.source is not None:
            file = finding.source.file
            if file not in files:
                files[file] = silenced_lines(read_lines(file))
            counts = not finding.code.startswith(files[file].get(finding.source.line, ()))
        (kept if counts else silenced).append(finding)
    return tuple(kept), tuple(silenced)


def silenced_lines(lines: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """Return for each line, from 1, what the codes begin with that are silenced there.

    A comment holds for all lines of its statement; the lines of what can't be read as Python up to there hold none.

    >>> silenced_lines(["x = (1 +\\n", "     2)  # attnshape: ignore[AS2]\\n"])
    {1: ('AS2',), 2: ('AS2',)}
    """
    found: dict[int, tuple[str, ...]] = {}
    for first, last, comments in _statements(lines):
        codes = tuple(code for comment in comments for code in _codes(comment))
        if codes:
            found |= dict.fromkeys(range(first, last + 1), codes)
    return found


def _statements(lines: Sequence[str]) -> Iterator[tuple[int, int, list[str]]]:
    """Return each statement's first and last line, from 1, and the comments on them."""
    first: int | None = None
    comments: list[str] = []
    try:
        for token in tokenize.generate_tokens(iter(lines).__next__):
            if token.type == tokenize.COMMENT:
                comments.append(token.string)
            elif token.type == tokenize.NEWLINE and first is not None:
                yield first, token.start[0], comments
                first, comments = None, []
            elif token.type == tokenize.NL and first is None:
                comments = []  # on a line of its own
            elif token.type not in (tokenize.NL, tokenize.INDENT, tokenize.DEDENT) and first is None:
                first = token.start[0]
    except _BROKEN:
        return


def _codes(comment: str) -> tuple[str, ...]:
    match = _COMMENT.search(comment)
    if match is None:
        return ()
    if match["codes"] is None:
        return ("",)
    return tuple(code.strip().upper() for code in match["codes"].split(",") if code.strip())
