"""What must hold of each format's output whatever text is in it, read by parsers that know nothing of attnshape.

Each check takes the output for a hostile text, and the output for a harmless text in the same places.
"""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from jsonschema import Draft4Validator
from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.cells import cell_len

from tests.reporters.hostile_text import HARMLESS

SARIF = Draft4Validator(json.loads((Path(__file__).parent / "sarif-2.1.0-rtm.5.json").read_text(encoding="utf-8")))
_MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
# Default_Ignorable_Code_Point of Unicode, and the one blank that is neither that nor a space
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u2800\u3164"
    "\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
UNFOLDED = 100_000
"""A width at which nothing is folded."""
_MOST_MARKS = 4
"""The most combining marks on one character; writing in use has three."""
# what GitHub turns into a link, a notification or a picture in text that is no code
_ACTIVE = re.compile(
    r"https?://|ftp://|www\.|mailto:|xmpp:|\w@\w|(?<![\w`])@\w|(?<![\w&])#\d|(?<!\w)GH-\d|\w/[\w.-]+#\d|:[\w+-]*[a-z+-][\w+-]*:|:100:|:1234:",
    re.IGNORECASE,
)
_RUN_OF_TEXT = {"text", "code_inline", "softbreak", "text_special"}


def check_lines(text: str) -> None:
    """Assert that there are no control and no invisible characters, and no marks on other lines."""
    for line in text.split("\n"):
        assert line.isprintable(), line
        assert not _INVISIBLE.search(line), line
        marks = 0
        for before, char in zip(" " + line, line, strict=False):
            marks = marks + 1 if unicodedata.category(char).startswith("M") else 0
            assert marks <= _MOST_MARKS, line
            assert not (marks and unicodedata.category(before)[0] in "ZC"), line


def check_no_commands(text: str) -> None:
    """Assert that GitHub's runner finds no command in a log that has this text."""
    assert workflow_commands(text) == []


@dataclass(frozen=True)
class WorkflowCommand:
    """A command as GitHub's runner reads it."""

    name: str
    properties: dict[str, str]
    data: str


def workflow_commands(text: str) -> list[WorkflowCommand]:
    """Return the commands in a log: those of `::name key=value::data`, and the older `##[name]` anywhere in a line.

    This follows `ActionCommand.TryParseV2` and `TryParse` of the runner, which knows certain names; here any counts.
    """
    lines = re.split(r"\r\n|\r|\n", text)
    return [command for line in lines if (command := _new_command(line) or _old_command(line)) is not None]


def _new_command(line: str) -> WorkflowCommand | None:
    line = line.lstrip()
    end = line.find("::", 2)
    if not line.startswith("::") or end < 0:
        return None
    name, _, rest = line[2:end].partition(" ")
    pairs = [part.split("=", 1) for part in rest.strip().split(",") if part]
    properties = {pair[0]: _decode(pair[1], ":,") for pair in pairs if len(pair) == 2 and pair[1]}
    return (
        WorkflowCommand(name, properties, _decode(line[end + 2 :], ""))
        if re.fullmatch(r"[a-z][\w-]*", name, re.I)
        else None
    )


def _old_command(line: str) -> WorkflowCommand | None:
    # the runner reads ##[…], other services ##name[…]
    found = re.search(r"##(\w*\[.*)", line)
    return WorkflowCommand(found[1], {}, "") if found else None


def _decode(text: str, extra: str) -> str:
    for char in ("\r", "\n", *extra, "%"):
        text = text.replace(f"%{ord(char):02X}", char)
    return text


def without_style(text: str) -> str:
    """Return text for a terminal without its colours."""
    return _STYLE.sub("", text)


def check_terminal(text: str, harmless: str, width: int) -> str:
    """Check text for a terminal, and return it without its colours."""
    plain = without_style(text)
    check_lines(plain)
    check_no_commands(plain)
    check_no_commands(text)
    assert all(cell_len(line) <= width for line in plain.split("\n"))
    if width >= UNFOLDED:
        assert plain.count("\n") == harmless.count("\n")
    return plain


def markdown_tokens(text: str) -> list[Token]:
    """Return all tokens of Markdown as GitHub parses it."""
    found: list[Token] = []
    for token in _MARKDOWN.parse(text):
        found += [token, *(token.children or [])]
    return found


def text_of(token: Token) -> str:
    """Return the text of an inline token as it is rendered."""
    return "".join(child.content for child in token.children or [])


def cells(text: str) -> list[list[str]]:
    """Return the text of each cell of each table in Markdown."""
    rows: list[list[str]] = []
    inside = False
    for token in _MARKDOWN.parse(text):
        if token.type == "tr_open":
            rows.append([])
        inside = inside and not token.type.startswith(("th_close", "td_close"))
        if inside and token.type == "inline":
            rows[-1].append(text_of(token))
        inside = inside or token.type in ("th_open", "td_open")
    return rows


def check_markdown(text: str, harmless: str) -> str:
    """Check Markdown, and return its text."""
    check_lines(text)
    check_no_commands(text)
    assert _structure(text) == _structure(harmless)
    for token in markdown_tokens(text):
        if token.type in ("text", "text_special"):
            assert not _ACTIVE.search(token.content), token.content
        if token.type == "inline":
            assert not _ACTIVE.search(" ".join(c.content for c in token.children or [] if c.type != "code_inline"))
    return "\n".join(
        text_of(token) or token.content
        for token in markdown_tokens(text)
        if not token.children or token.type == "inline"
    )


def _structure(text: str) -> list[tuple[str, str, str]]:
    """Return what Markdown consists of besides runs of text: types, tags, and the languages of code."""
    return [
        (token.type, token.tag, token.info if token.type == "fence" else token.content if "html" in token.type else "")
        for token in markdown_tokens(text)
        if token.type not in _RUN_OF_TEXT
    ]


class _Html(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.structure: list[tuple[str, object]] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.structure.append((tag, tuple(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self.structure.append(("/", tag))

    def handle_comment(self, data: str) -> None:
        self.structure.append(("comment", data))

    def handle_decl(self, decl: str) -> None:
        self.structure.append(("declaration", decl))

    def handle_pi(self, data: str) -> None:
        self.structure.append(("instruction", data))

    def unknown_decl(self, data: str) -> None:
        self.structure.append(("unknown", data))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def check_html(text: str, harmless: str) -> str:
    """Check HTML, and return its text."""
    check_lines(text)
    check_no_commands(text)
    parsed = _Html(text)
    assert parsed.structure == _Html(harmless).structure
    names = {name for _, attributes in parsed.structure if isinstance(attributes, tuple) for name, _ in attributes}
    assert names <= {"class", "style", "colspan", "cellpadding", "lang", "charset"}
    assert not {tag for tag, _ in parsed.structure} & {"script", "a", "img", "iframe", "link", "form", "input"}
    return "".join(parsed.text)


_INLINE = {"code", "span", "mark", "del", "ins", "rect"}
"""What a page puts around parts of a text, such as symbols in their colours; and the squares of a pattern."""
_OF_TEXTS = {"aria-label", "class", "height", "width"}
"""The attributes that depend on texts; classes say whether something changed."""
_PAGE_ATTRIBUTES = {
    *(
        "aria-hidden",
        "aria-label",
        "cellpadding",
        "charset",
        "class",
        "colspan",
        "content",
        "data-column",
        "data-part",
        "height",
        "href",
    ),
    *(
        "http-equiv",
        "id",
        "lang",
        "name",
        "open",
        "rel",
        "role",
        "scope",
        "style",
        "tabindex",
        "type",
        "width",
        "x",
        "y",
    ),
}


def check_page(text: str, harmless: str) -> str:
    """Check a whole HTML page, and return its text, also that of the data for its script."""
    check_lines(text)
    check_no_commands(text)
    parsed, expected = _Html(text), _Html(harmless)
    assert _blocks(parsed) == _blocks(expected)
    names = {name for _, attributes in parsed.structure if isinstance(attributes, tuple) for name, _ in attributes}
    assert names <= _PAGE_ATTRIBUTES, names - _PAGE_ATTRIBUTES
    classes = {
        value for _, pairs in parsed.structure if isinstance(pairs, tuple) for name, value in pairs if name == "class"
    }
    assert all(re.fullmatch(r"[\w -]+", value) for value in classes)
    assert not {tag for tag, _ in parsed.structure} & {"img", "iframe", "object", "embed", "form", "base"}
    assert [script for script in scripts(text) if not script.startswith("{")] == [
        script for script in scripts(harmless) if not script.startswith("{")
    ]
    data = [json.loads(script) for script in scripts(text) if script.startswith("{")]
    texts = [one for value in data for _, one in _strings(value)]
    check_lines("\n".join(texts))
    return "\n".join(["".join(parsed.text), *texts])


def scripts(page: str) -> list[str]:
    """Return what stands in the script elements of a page, as a browser finds their ends."""
    return re.findall(r"<script[^>]*>(.*?)</script", page, re.DOTALL | re.IGNORECASE)


def _blocks(parsed: _Html) -> list[tuple[str, object]]:
    """Return the structure of a page without what depends on its texts."""
    blocks: list[tuple[str, object]] = []
    for tag, value in parsed.structure:
        if tag in _INLINE or (tag == "/" and value in _INLINE):
            continue
        kept = [pair for pair in value if pair[0] not in _OF_TEXTS] if isinstance(value, tuple) else value
        blocks.append((tag, kept))
    return blocks


_MERMAID_LABEL = r'"(?:[A-Za-z0-9 _.,+=/()×·…-]|#[0-9]+;|<w?br>)*"'
_MERMAID_LINE = re.compile(
    rf"flowchart TD|  n\d+(?:\[{_MERMAID_LABEL}\]|\(\[{_MERMAID_LABEL}\]\)|\[\[{_MERMAID_LABEL}\]\]"
    rf"|\{{\{{{_MERMAID_LABEL}\}}\}})|  n\d+ -- {_MERMAID_LABEL} --> n\d+"
)


def check_notebook(text: str, harmless: str) -> str:
    """Check a notebook, and return the text of its cells of Markdown. Its code has no text of the value."""
    cells, expected = (json.loads(one)["cells"] for one in (text, harmless))
    assert [cell["cell_type"] for cell in cells] == [cell["cell_type"] for cell in expected]
    shown = []
    for cell, other in zip(cells, expected, strict=True):
        if cell["cell_type"] == "code":
            assert cell == other
        else:
            shown.append(check_markdown(cell["source"], other["source"]))
    return "\n".join(shown)


def check_mermaid(text: str, harmless: str) -> str:
    """Check a flow chart, and return the text of its labels."""
    check_lines(text)
    check_no_commands(text)
    # an input that is named differently in its place and where it is read has no edge, so lines may be fewer
    lines = text.rstrip("\n").split("\n")
    assert all(_MERMAID_LINE.fullmatch(line) for line in lines), text
    return re.sub(r"#(\d+);", lambda match: chr(int(match[1])), text.replace("<wbr>", ""))


def check_github(text: str, harmless: str) -> str:
    """Check a log with workflow commands, and return the texts of the commands and the other lines."""
    check_lines(text)
    lines = text.split("\n")
    commands = workflow_commands(text)
    expected = workflow_commands(harmless)
    assert [(one.name, list(one.properties)) for one in commands] == [
        (one.name, list(one.properties)) for one in expected
    ]
    assert len(lines) == len(harmless.split("\n"))
    assert all(one.name == "error" for one in commands)
    check_no_commands("\n".join(lines[len(commands) :]))
    texts = [text for one in commands for text in (*one.properties.values(), one.data)]
    check_lines("\n".join(texts))
    return "\n".join((*texts, *lines[len(commands) :]))


def check_json(text: str, harmless: str, hostile: str) -> str:
    """Check that JSON contains exactly the hostile text where the other has the harmless one."""
    text.encode()
    check_no_commands(text)
    assert all(line.isprintable() or not set(line) & set(map(chr, range(32))) for line in text.split("\n"))
    assert _renamed(json.loads(text), hostile) == json.loads(harmless)
    return ""


def _renamed(value: Any, hostile: str) -> Any:
    if isinstance(value, dict):
        return {_renamed(key, hostile): _renamed(one, hostile) for key, one in value.items()}
    if isinstance(value, list):
        return [_renamed(one, hostile) for one in value]
    return HARMLESS if value == hostile else value


def check_sarif(text: str, harmless: str) -> str:
    """Check a SARIF log, and return the texts of its results."""
    text.encode()
    check_no_commands(text)
    log = json.loads(text)
    assert [error.message for error in SARIF.iter_errors(log)] == []
    (run,), (other,) = log["runs"], json.loads(harmless)["runs"]
    assert run["tool"] == other["tool"] or run["tool"]["driver"]["rules"] == other["tool"]["driver"]["rules"]
    assert _shape({**run, "tool": None}) == _shape({**other, "tool": None})
    for key, one in _strings({**run, "tool": None}):
        check_lines(one)
        if key == "message.text":
            # an embedded link of SARIF 3.11.6, whose brackets aren't escaped
            assert not re.search(r"(?<!\\)\[(?:[^\[\]\\]|\\.)*\]\(", one), one
        if key == "uri":
            assert re.fullmatch(r"(?:file://)?(?:[\w.~/!$&'()*+,;=@-]|%[0-9A-F]{2})*", one), one
            assert not one.startswith("//")
    assert not any("markdown" in key for key, _ in _strings({**run, "tool": None}))
    return "\n".join(one for _, one in _strings(run["results"]))


def _shape(value: Any) -> Any:
    if isinstance(value, dict):
        return [_shape(one) for one in value.values()]
    return [_shape(one) for one in value] if isinstance(value, list) else type(value)


def _strings(value: Any, key: str = "") -> list[tuple[str, str]]:
    if isinstance(value, str):
        return [(key, value)]
    if isinstance(value, dict):
        named = ((f"{key}.text" if name == "text" else name, name, one) for name, one in value.items())
        return [pair for label, name, one in named for pair in [("key", name), *_strings(one, label)]]
    return [pair for one in value for pair in _strings(one, key)] if isinstance(value, list) else []
