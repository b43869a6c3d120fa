"""Saved traces and snapshots that are forged or damaged: by the types of their fields, and byte by byte."""

from __future__ import annotations

import copy
import json
import random
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from attnshape.model.trace import Trace
from tests.fuzz.cases import Family, Verdict, checked, run_in
from tests.fuzz.command_lines import assert_format
from tests.fuzz.harness import Command, Harness, Outcome
from tests.fuzz.project import project_files

_HOSTILE = (
    "[bold red]x[/]", "a|b\\|`c`", "\x1b[31mred\x1b[0m\x07", "<script>alert(1)</script> &amp;",
    "one\ntwo\r\n\n| x | y |\n", "\u202eabc\u2066", "注意力机制 👩‍👩‍👧", "**b** _i_ [l](http://x)", "(" * 80, "x" * 500,
    "B " * 300, "", "𝓍" * 40, "\ud800", "\0", "\x85\u2028", "a\ud800b", "'\"\\",
)  # fmt: skip
_EVERYTHING = "a|b\\|`c` [red]x[/] <b>&amp; **d** _e_ [l](http://x) \n| x |\r\n\x1b[31m\u202e\u2066 注意"
_EXPRESSIONS = ("B", "H*Dk", "L**9**9", "0//0", "9" * 400, "B L" * 3, "*B", "...", "max(L, 3)", "-1", "1e9", "L-" * 50)
_NUMBERS = (0, -1, 1, 40, 2**31, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**400, 0.5, -0.0, 1e308)
_WORDS = ("verified", "literal", "view", "inplace", "scores", "softmax", "none", "given", "attnshape/trace/1")
_VALUES = (
    *_HOSTILE, *_NUMBERS, *_WORDS, True, None, [], {}, [[]], {"a": 1}, {"step": 1}, {"step": 0}, {"step": 10**9},
    {"step": -1, "output": 3}, {"step": 1, "output": 4}, float("nan"), float("inf"), [None] * 50,
)  # fmt: skip
_SOURCES = ("heads.json", "attention.json", "fails.json", "average.json", "masked.json")
_SNAPSHOTS = ("average.txt", "heads.txt")
_SHOW = (
    (), ("--explain",), ("--match", "scores,softmax"), ("--columns", "step,op,signature,strides,source,known"),
    ("--depth", "0"), ("--columns", "step,role,shape,stride,dtype,bytes,storage,module"),
)  # fmt: skip
_DEEP = 200_000


@dataclass(frozen=True)
class Damaged:
    """A damaged file, and what is done with it."""

    content: bytes
    words: tuple[str, ...]
    file: str
    how: str
    others: tuple[tuple[str, str], ...] = ()
    """Files that are copies of others of the project."""
    width: str = "100"
    refused: bool = False
    """Whether the file certainly isn't a trace any more."""


def paths_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every item inside a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found: list[tuple[Any, ...]] = []
    for key, item in items:
        found += [(*path, key), *paths_in(item, (*path, key))]
    return found


def _enumerated(described: msgspec.inspect.Type) -> Iterator[str]:
    """Yield the keys, anywhere in a saved trace, that have one of some values."""
    match described:
        case msgspec.inspect.StructType(fields=fields):
            for each in fields:
                parts = each.type.types if isinstance(each.type, msgspec.inspect.UnionType) else (each.type,)
                if any(isinstance(part, msgspec.inspect.LiteralType) for part in parts):
                    yield each.encode_name
                for part in parts:
                    yield from _enumerated(part)
        case msgspec.inspect.VarTupleType(item_type=item) | msgspec.inspect.DictType(value_type=item):
            yield from _enumerated(item)


_BOUND = {*_enumerated(msgspec.inspect.type_info(Trace)), "index", "step", "output", "parent", "first", "last"}
"""The keys whose values are enumerated, or are the numbers of steps."""


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


class _Items:
    """The items of a saved trace, by kind, so that all kinds are equally likely."""

    def __init__(self, content: bytes) -> None:
        self.value = json.loads(content)
        kinds: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
        for path in paths_in(self.value):
            kinds.setdefault(tuple("*" if type(key) is int else key for key in path), []).append(path)
        self.kinds = list(kinds.values())
        self.free = [paths for kind, paths in kinds.items() if kind[-1] not in _BOUND]
        """The items that may have any value of their type."""
        self.texts = [paths for paths in self.free if isinstance(_at(self.value, paths[0]), str)]


def _item(draw: DrawFn, kinds: list[list[tuple[Any, ...]]], value: Any) -> tuple[Any, Any]:
    """Draw an item; return its container and its key, or a container that is gone as None."""
    of_kind = draw(st.sampled_from(kinds))
    path = draw(st.sampled_from(of_kind))
    owner = value
    for key in path[:-1]:
        try:
            owner = owner[key]
        except (KeyError, IndexError, TypeError):
            return None, None
    key = path[-1]
    if isinstance(owner, dict):
        inside = key in owner
    else:  # a list may have taken the place of a mapping
        inside = isinstance(owner, list) and isinstance(key, int) and key < len(owner)
    return (owner, key) if inside else (None, None)


def _forge(draw: DrawFn, items: _Items) -> Any:
    """Replace texts and numbers by others of their type, so that the trace mostly stays valid."""
    value = copy.deepcopy(items.value)
    if draw(st.booleans()):  # all texts of some kinds, so that some of them are shown
        for paths in draw(st.lists(st.sampled_from(items.texts), min_size=1, max_size=8)):
            text = _EVERYTHING if draw(st.booleans()) else draw(st.sampled_from(_HOSTILE))
            for *path, key in paths:
                _at(value, tuple(path))[key] = text
        return value
    kinds = draw(st.sampled_from((items.texts, items.free, items.kinds)))
    for _ in range(draw(st.integers(1, 4))):
        owner, key = _item(draw, kinds, value)
        now = owner[key] if owner is not None else None
        if isinstance(now, bool):
            owner[key] = not now
        elif isinstance(now, str):
            owner[key] = draw(st.sampled_from((*_HOSTILE, *_EXPRESSIONS, *_WORDS)))
        elif isinstance(now, int):
            owner[key] = draw(st.integers(-2, 40) | st.sampled_from(_NUMBERS[:10]))
        elif isinstance(now, list) and now and kinds is items.kinds:
            del owner[key][-1]
    return value


def _damage(draw: DrawFn, items: _Items) -> Any:
    """Replace, remove, repeat, move or rename items."""
    value = copy.deepcopy(items.value)
    for _ in range(draw(st.integers(1, 3))):
        owner, key = _item(draw, items.kinds, value)
        if owner is None:
            continue
        how = draw(st.sampled_from(("replace", "remove", "repeat", "rename", "swap", "nest")))
        if how == "replace":
            owner[key] = copy.deepcopy(draw(st.sampled_from(_VALUES)))
        elif how == "remove":
            del owner[key]
        elif how == "nest":
            owner[key] = [owner[key]] if draw(st.booleans()) else {"x": owner[key]}
        elif isinstance(owner, list):
            owner.insert(0 if how == "swap" else key, copy.deepcopy(owner[key]))
        else:
            name = draw(st.sampled_from((*_HOSTILE, "step", "schema", "schem\u0430")))
            owner[name] = owner[key] if how == "repeat" else owner.pop(key)
    return value


def _bytes(draw: DrawFn, content: bytes) -> tuple[bytes, bool]:
    """Damage the bytes of a file; return also whether it certainly can't be read any more."""
    how = draw(
        st.sampled_from(("truncate", "flip", "splice", "mark", "encoding", "nul", "prefix", "line", "duplicate"))
    )
    place = draw(st.integers(0, len(content) - 1))
    if how == "truncate":
        return content[:place], place < len(content) - 3
    if how == "flip":
        changed = bytearray(content)
        for _ in range(draw(st.integers(1, 5))):
            changed[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
        return bytes(changed), False
    if how == "splice":
        other = draw(st.integers(0, len(content) - 1))
        return content[:place] + content[other : other + draw(st.integers(0, 300))] + content[place:], False
    if how == "mark":
        return b"\xef\xbb\xbf" + content, False
    if how == "encoding":
        return content.decode().encode(draw(st.sampled_from(("utf-16", "utf-32", "utf-16-be", "utf-7")))), False
    if how == "nul":
        return content[:place] + b"\0" * draw(st.integers(1, 100)) + content[place:], False
    if how == "prefix":
        return draw(
            st.sampled_from((b"{}", b"[", b"null\n", b"\n\n", b"//x\n", b"\x1f\x8b\x08", b"PK\x03\x04"))
        ) + content, False
    lines = content.split(b"\n")
    number = place % len(lines)
    if how == "line":
        del lines[number]
    else:
        lines.insert(number, lines[number])
    return b"\n".join(lines), False


WHOLE = (
    b"", b"null", b"NaN", b'{"schema": NaN}', b'"\\ud800"', b'{"schema": "\\ud800"}', b"\xff\xfe\x00", b"1e999999",
    b"9" * 5000, b"[" * _DEEP, b'{"a":' * _DEEP, b"[" * _DEEP + b"]" * _DEEP, b'"' + b"x" * 5_000_000 + b'"',
    b'{"schema": "attnshape/trace/1", "target": "' + b"y" * 5_000_000 + b'"}', bytes(range(256)) * 16, b"\n" * 100_000,
    b'{"schema": "attnshape/trace/9"}', b'{"schema": "attnshape/traces/1", "results": []}', b'{"schema": ["x"]}',
)  # fmt: skip


def saved_files(harness: Harness) -> SearchStrategy[Damaged]:
    """Return a strategy for damaged files, each with a command that reads it."""
    files = project_files(harness)
    items = {name: _Items(files[name]) for name in _SOURCES}

    @st.composite
    def damaged(draw: DrawFn) -> Damaged:
        kind = draw(st.integers(0, 19))
        source = draw(st.sampled_from(_SOURCES))
        refused = False
        if kind < 10:
            value, how = _forge(draw, items[source]), "forged"
            content = json.dumps(value, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")
        elif kind < 14:
            value, how = _damage(draw, items[source]), "damaged"
            content = json.dumps(value).encode()
        elif kind < 17:
            (content, refused), how = _bytes(draw, files[source]), "bytes"
        elif kind < 19:
            source = draw(st.sampled_from(_SNAPSHOTS))
            content, how = _bytes(draw, files[source])[0], "snapshot"
        else:
            content, how, refused = draw(st.sampled_from(WHOLE)), "whole", True
        if how == "snapshot" or draw(st.integers(0, 2)) == 0:
            return _compared(draw, content, source, how)
        format_ = draw(st.sampled_from(("table", "table", "markdown", "markdown", "markdown", "json", "html")))
        more = draw(st.sampled_from(_SHOW)) if format_ != "json" else ()
        width = draw(st.sampled_from(("40", "80", "100", "300")))
        return Damaged(content, ("show", "x.json", "--format", format_, *more), "x.json", how, (), width, refused)

    return damaged()


def _compared(draw: DrawFn, content: bytes, source: str, how: str) -> Damaged:
    suffix = source.rpartition(".")[2]
    format_ = ("--format", draw(st.sampled_from(("table", "markdown", "json"))))
    where = draw(st.sampled_from(("old", "new", "both", "old folder", "new folder")))
    if where.endswith("folder"):
        side = "a" if where == "old folder" else "b"
        others = (
            (f"{'ab'.replace(side, '')}/x.{suffix}", source),
            ("a/y.json", "heads.json"),
            ("b/y.json", "heads.json"),
        )
        return Damaged(content, ("diff", "a", "b", *format_), f"{side}/x.{suffix}", how, others)
    file = f"x.{suffix}"
    sides = {"old": (file, source), "new": (source, file), "both": (file, file)}[where]
    return Damaged(content, ("diff", *sides, *format_), file, how)


def attempt(case: Damaged, harness: Harness) -> Verdict:
    """Show or compare the file: either works, or is refused with one error."""
    files = dict(project_files(harness))
    files |= {name: files[original] for name, original in case.others}
    files[case.file] = case.content
    verdict = Verdict(valid=not case.refused)
    command = Command(words=case.words, environment={"COLUMNS": case.width}, seconds=20)
    expected = (2,) if case.refused and not case.others else (0, 2) if case.words[0] == "show" else (0, 1, 2)
    outcome = run_in(harness, files, command, verdict, statuses=expected)
    if outcome.status == 2 and not (case.others and outcome.out):
        checked(verdict, "the refusal", lambda: assert_refusal(outcome))
    elif outcome.status in (0, 1):
        if outcome.err:
            verdict.problems.append(f"standard error: {outcome.err[:300]!r}")
        format_ = case.words[case.words.index("--format") + 1]
        if case.words[0] == "diff":
            if format_ == "json":
                checked(verdict, "the json", lambda: assert_format("value", outcome.out, 100, False))
            else:
                checked(verdict, "the text", lambda: _assert_printable(outcome.out))
        else:
            explained = "--explain" in case.words
            checked(verdict, f"the {format_}", lambda: assert_format(format_, outcome.out, int(case.width), explained))
    return verdict


def assert_refusal(outcome: Outcome) -> None:
    """Assert that there is one error line and one hint line, without control characters, and nothing else."""
    lines = outcome.err.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["error:", "hint:"], outcome.err[:500]
    assert all(line.isprintable() for line in lines), outcome.err[:500]
    assert not outcome.out, outcome.out[:200]


def _assert_printable(text: str) -> None:
    bad = [line for line in text.split("\n") if not line.isprintable()]
    assert not bad, bad[0][:300]


def describe(case: Damaged) -> str:
    """Return the command, and how the file begins; the whole file is too long."""
    digest = random.Random(case.content).randrange(16**6)
    name = Path(case.file).name
    return f"{shlex.join(('attnshape', *case.words))}   # {name}, {case.how}, {len(case.content)} bytes, {digest:06x}"


FAMILY = Family("saved-files", saved_files, attempt, describe, fixed_cases=50, long_cases=10_000)
