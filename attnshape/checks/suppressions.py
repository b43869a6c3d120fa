"""Which findings count: by code, `--select` and `--ignore`, and by comments such as `# attnshape: ignore[AS201]`."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from attnshape.checks.rules.pages import PREFIX, codes_under, suggest_code
from attnshape.errors import AttnshapeError, Option
from attnshape.model.report import Finding
from attnshape.runtime.files import ReadLines, source_lines

_ALL = "ALL"
_COMMENTS = "AS0"
_COMMENT = re.compile(r"#\s*attnshape:\s*ignore(?:\s*\[(?P<codes>[^\[\]]*)\]|(?!\s*\[|[\w-]))", re.IGNORECASE)


@dataclass(frozen=True)
class Selection:
    """The codes that count; the longer of two prefixes wins, of equals the one that ignores."""

    select: tuple[str, ...] = (PREFIX,)
    ignore: tuple[str, ...] = ()

    @classmethod
    def parse(cls, select: Iterable[str], ignore: Iterable[str]) -> Selection:
        """Return the selection of comma-separated codes; all codes if nothing is selected.

        Raises AttnshapeError if a code or family doesn't exist.

        >>> Selection.parse(["AS2,AS301"], ["as203"])
        Selection(select=('AS2', 'AS301'), ignore=('AS203',))
        """
        return cls(_prefixes("select", select) or (PREFIX,), _prefixes("ignore", ignore))

    def keeps(self, code: str) -> bool:
        """Return whether a code counts.

        >>> selection = Selection.parse(["AS2", "AS301"], ["AS3", "AS203"])
        >>> [code for code in ("AS201", "AS203", "AS301", "AS302", "AS101") if selection.keeps(code)]
        ['AS201', 'AS301']
        """
        return _longest(self.select, code) > _longest(self.ignore, code)

    @property
    def only_comments(self) -> bool:
        """Whether only rules on shape comments count, so that no other rule has to run.

        >>> [Selection.parse([codes], []).only_comments for codes in ("AS0", "AS001,AS004", "AS0,AS201", "ALL")]
        [True, True, False, False]
        """
        kept = [code for code in codes_under(PREFIX) if self.keeps(code)]
        return bool(kept) and all(code.startswith(_COMMENTS) for code in kept)


def _longest(prefixes: tuple[str, ...], code: str) -> int:
    return max((len(prefix) for prefix in prefixes if code.startswith(prefix)), default=0)


def _prefixes(field: str, texts: Iterable[str]) -> tuple[str, ...]:
    prefixes: dict[str, None] = {}
    for word in (word.strip() for text in texts for word in text.split(",")):
        prefix = PREFIX if word.upper() == _ALL else word.upper()
        if not codes_under(prefix):
            problem = f" names {word[:40]!r}, which is neither a code nor a family"
            raise AttnshapeError((Option(field), problem), suggest_code(word))
        prefixes[prefix] = None
    return tuple(prefixes)


def split_suppressed(
    findings: Iterable[Finding], selection: Selection, read_lines: ReadLines = source_lines
) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Return the findings that count, and those that the selection or a comment in the source suppresses."""
    kept: list[Finding] = []
    suppressed: list[Finding] = []
    files: dict[str, Mapping[int, tuple[str, ...]]] = {}
    for finding in findings:
        counts = selection.keeps(finding.code)
        for source in filter(None, (finding.source, finding.used)) if counts else ():
            if source.file not in files:
                files[source.file] = suppressed_lines(read_lines(source.file))
            counts = counts and not finding.code.startswith(files[source.file].get(source.line, ()))
        (kept if counts else suppressed).append(finding)
    return tuple(kept), tuple(suppressed)


def suppressed_lines(lines: Sequence[str]) -> dict[int, tuple[str, ...]]:
    """Return for each line, from 1, the prefixes of the codes that are suppressed there.

    A comment applies to all lines of its statement. After a syntax error no comment applies.

    >>> suppressed_lines(["x = (1 +\\n", "     2)  # attnshape: ignore[AS2]\\n"])
    {1: ('AS2',), 2: ('AS2',)}
    """
    suppressed: dict[int, tuple[str, ...]] = {}
    for first, last, comments in _statements(lines):
        if codes := tuple(code for comment in comments for code in _codes(comment)):
            suppressed |= dict.fromkeys(range(first, last + 1), codes)
    return suppressed


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
    except (tokenize.TokenError, SyntaxError):
        return


def _codes(comment: str) -> tuple[str, ...]:
    match = _COMMENT.search(comment)
    if match is None or match["codes"] is None:
        return () if match is None else ("",)
    return tuple(code.strip().upper() for code in match["codes"].split(",") if code.strip())
