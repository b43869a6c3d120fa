"""Command lines of every verb, built from a model of the flags: valid ones, and ones with one mistake."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jsonschema
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from attnshape.dims.symbols import SYMBOLS_BY_NAME
from attnshape.targets.builtin.registry import CATALOG, describe
from tests.fuzz.cases import Family, Verdict, checked, run_in
from tests.fuzz.harness import Command, Harness, Outcome
from tests.fuzz.project import SIZES, project_files
from tests.fuzz.pyproject_tables import pyproject_lines
from tests.robust.output_parsers import assert_drawn

_SARIF = jsonschema.Draft4Validator(
    json.loads((Path(__file__).parents[1] / "reporters/sarif-2.1.0-rtm.5.json").read_text(encoding="utf-8"))
)
_FINE, _FOUND, _CANNOT = frozenset({0}), frozenset({1}), frozenset({2})
_EITHER = frozenset({0, 1})


@dataclass(frozen=True)
class Line:
    """A command line, and what should come of it."""

    words: tuple[str, ...]
    statuses: frozenset[int]
    shows: str | None = None
    """The format of what it prints or writes, where a parser is known for it."""
    output: str | None = None
    """The file that it writes."""
    changes: tuple[str, ...] = ()
    """The files that it changes."""
    why: str = "valid"
    environment: Mapping[str, str | None] = field(default_factory=dict)
    pyproject: bytes | None = None
    follows_hint: bool = False
    """Whether the command that the hint shows is run too."""

    @property
    def valid(self) -> bool:
        return self.statuses != _CANNOT

    def plus(self, *words: str, **changed: Any) -> Line:
        return replace(self, words=(*self.words, *words), **changed)

    def refused(self, why: str, *words: str) -> Line:
        """Return this line with more words, which make it invalid."""
        return self.plus(*words, statuses=_CANNOT, why=why, shows=None, output=None, changes=())


HOSTILE = (
    "[bold red]x[/]", "a|b`c`", "\x1b[31mred", "<script>", "one\ntwo", "\u202eabc", "注意 👩‍👩‍👧", "x" * 3000,
    "(" * 300,
    "1e3", "9" * 40, "\udcff", "../..", "~", "%s %n {}", "None", "__import__", "lambda: 0", "a:b:c", "\x07", "\x85",
)  # fmt: skip
"""Texts that are no valid value of any flag, verb or target."""

_BAD_SIZE = ("0", "-1", "1.5", "two", "", "1e3", "9" * 40, "٠", "0x4", "4 4", "nan", *HOSTILE[:9])
_SIZE_FLAGS = tuple(symbol.flag for symbol in SYMBOLS_BY_NAME.values())
_BAD_VALUES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_SIZE_FLAGS, _BAD_SIZE),
    "--seed": ("-1", "x", "1.5", "9" * 30, ""),
    "--dtype": ("float31", "int64", "", "Float32", *HOSTILE[:6]),
    "--device": ("tpu", "cpu:0:0", "", "cuda:x", *HOSTILE[:6]),
    "--dropout": ("1", "-1", "nan", "inf", "half", ""),
    "--mask-value": ("0", "1", "nan", "low", ""),
    "--dim": ("T", "T=", "3=T", "B=3", "T=x+", "T=__import__('os')", "T=0", "T=-2", "T=2*Q", "T=1//0", "=",
    *HOSTILE[:6]),
    "--format": ("xml", "", "sarif ", *HOSTILE[:6]),
    "--columns": ("stripe", "", ",", "step,nosuch", *HOSTILE[:6]),
    "--match": ("nosuch", "", ",", *HOSTILE[:3]),
    "--depth": ("-1", "x", "1.5", ""),
    "--expect": ("scores", "nosuch: B", "output: Q", "output: B/2", ": B", *HOSTILE[:6]),
    "--claim": ("casual", "window=", "window=)", "rope=quarter", "scale=", "mask=kept", *HOSTILE[:6]),
    "--select": ("AS999", "", "nosuch", *HOSTILE[:6]),
    "--ignore": ("AS999", "", "nosuch", *HOSTILE[:6]),
    "--time-limit": ("0", "-1", "nan", "inf", "soon", ""),
    "--style": ("google", "", *HOSTILE[:6]),
    "--existing": ("erase", "", *HOSTILE[:6]),
    "--include": ("all", "", *HOSTILE[:6]),
    "--fail-on": ("nosuch", "", ",", *HOSTILE[:6]),
    "--output": ("old", "nosuch/x.json", "code.py/x.json", "/proc/nosuch", "n" * 300),
    "--init": ("D, )", "D, nosuch", "D); print(1", "D, H, zz=1", "1/0, H", *HOSTILE[:1]),
    "--input": ("x", "x: B Q", "y: int[0] B", "x: B*", "x: B L-99", "nosuch: B", *HOSTILE[:6]),
    "--with": ("x", "x=", "x=(", "zz=1", "y=nosuch", "y=1/0", *HOSTILE[:1]),
}  # fmt: skip
_ALL_COLUMNS = (
    "step", "expression", "role", "op", "signature", "strides", "shape", "stride", "contiguous", "dtype", "device",
    "bytes", "storage", "module", "source", "known",
)  # fmt: skip
_TARGET_FLAGS = (*_SIZE_FLAGS, "--seed", "--dtype", "--device", "--dropout", "--mask-value", "--dim")
_FLAGS_OF = {
    "trace": (*_TARGET_FLAGS, "--format", "--columns", "--depth", "--expect", "--output", "--match"),
    "check": (*_TARGET_FLAGS, "--format", "--claim", "--select", "--ignore", "--time-limit", "--output"),
    "annotate": (*_TARGET_FLAGS, "--style", "--existing", "--include", "--output"),
    "diff": ("--format", "--fail-on", "--output", "--seed", "--batch"),
    "show": ("--format", "--columns", "--match", "--depth", "--output"),
}
_CODES = ("AS001", "AS002", "AS101", "AS201", "AS202", "AS301")
_OUTPUTS = ("out", "out.json", "old/out.md", "out put.txt", "注意.html", "-out", "a'b\".md", "./out.x", "[red].txt")


def _choice(draw: DrawFn, values: Sequence[Any]) -> Any:
    return draw(st.sampled_from(values))


def _one_in(draw: DrawFn, number: int) -> bool:
    return bool(draw(st.integers(1, number)) == number)


def _written(draw: DrawFn, line: Line) -> Line:
    """Sometimes write to a file instead of standard output."""
    if not _one_in(draw, 4):
        return line
    name = _choice(draw, _OUTPUTS)
    return line.plus(*_flag(draw, "--output", name), output=name)


def _flag(draw: DrawFn, flag: str, value: str) -> tuple[str, ...]:
    """Return a flag with its value, in one word or in two."""
    return (f"{flag}={value}",) if _one_in(draw, 3) or value.startswith("-") else (flag, value)


def _view(draw: DrawFn, line: Line, matches: Sequence[str]) -> Line:
    """Add a format, and what it shows of a trace."""
    format_ = _choice(draw, ("", "auto", "markdown", "table", "html", "json"))
    words: list[str] = [*(_flag(draw, "--format", format_) if format_ else ())]
    if format_ != "json":
        if _one_in(draw, 3):
            columns = draw(st.lists(st.sampled_from(_ALL_COLUMNS), min_size=1, max_size=6, unique=True))
            words += _flag(draw, "--columns", ",".join(columns))
        if matches and _one_in(draw, 3):
            words += _flag(draw, "--match", _choice(draw, matches))
        if _one_in(draw, 4):
            words += _flag(draw, "--depth", _choice(draw, ("0", "1", "2", "99")))
        words += ["--explain"] * _one_in(draw, 4)
    line = line.plus(*words, shows={"": "markdown", "auto": "markdown"}.get(format_, format_))
    return _written(draw, line)


_MATCHES = {
    "average.json": ("softmax", "matmul", "*"),
    "heads.json": ("scores", "softmax,scores", "mask", "projection", "linear", "split,merge"),
    "attention.json": ("scores", "softmax", "W*", "projection"),
}
_VERBS_SHOWING_TRACES = ("average.json", "masked.json", "heads.json", "attention.json", "fails.json")


@st.composite
def _show(draw: DrawFn) -> Line:
    file = _choice(draw, _VERBS_SHOWING_TRACES)
    return _view(draw, Line(("show", _choice(draw, ("", "./")) + file), _FINE), _MATCHES.get(file, ()))


@st.composite
def _diff(draw: DrawFn) -> Line:
    alike = (
        ("average.json", "average.txt"), ("heads.json", "heads.json"), ("heads.txt", "heads.json"), ("old", "same"),
        ("average.json", "same/average.json"), ("old", "old"), ("attention.json", "attention.json"),
    )  # fmt: skip
    unlike = (
        ("average.json", "masked.json"), ("heads.json", "average.json"), ("average.txt", "heads.txt"), ("old", "new"),
        ("new", "old"), ("fails.json", "average.json"), ("heads.json", "attention.json"),
    )  # fmt: skip
    differs = draw(st.booleans())
    sides = _choice(draw, unlike if differs else alike)
    line = Line(("diff", *sides), _FOUND if differs else _FINE)
    if _one_in(draw, 3):
        kinds = draw(
            st.lists(
                st.sampled_from(("size", "signature", "stride", "storage", "dtype", "steps", "any")),
                min_size=1,
                max_size=3,
            )
        )
        line = line.plus(*_flag(draw, "--fail-on", ",".join(kinds)))
        if differs and "any" not in kinds:
            line = replace(line, statuses=_EITHER)
    if _one_in(draw, 2):
        format_ = _choice(draw, ("auto", "markdown", "table", "json"))
        line = line.plus(*_flag(draw, "--format", format_), shows="value" if format_ == "json" else None)
    if _one_in(draw, 12):
        line = Line(("diff", "average", "average.json", *SIZES), _FINE)
    return _written(draw, line)


@st.composite
def _reference(draw: DrawFn) -> Line:
    verb = _choice(draw, ("rule", "catalog", "glossary", "help"))
    if verb == "rule":
        code = _choice(draw, ("", *_CODES, "AS2", "AS", "AS30"))
        return Line(("rule", *([code] if code else [])), _FINE)
    if verb == "catalog":
        return Line(("catalog", *([_choice(draw, tuple(CATALOG))] if draw(st.booleans()) else [])), _FINE)
    if verb == "help":
        verb = _choice(draw, ("trace", "check", "annotate", "diff", "rule", "show", "catalog", "glossary", ""))
        if _one_in(draw, 5):
            return Line(("--version",), _FINE)
        return Line((*([verb] if verb else []), _choice(draw, ("--help", "-h"))), _FINE)
    return Line(("glossary",), _FINE)


_OPTIONS = {
    "causal": ("--causal",),
    "padding": ("--padding",),
    "bias": ("--no-bias",),
    "dropout": ("--dropout", "0.5"),
    "mask_value": ("--mask-value", "-10000.0"),
}


@st.composite
def _target(draw: DrawFn, own_only: bool = False) -> tuple[tuple[str, ...], frozenset[int], tuple[str, ...]]:
    """Draw a target with its sizes and options; also the status of a trace of it, and what `--match` finds in it."""
    if not own_only and draw(st.booleans()):
        mechanism = _choice(draw, tuple(CATALOG))
        described = _choice(draw, describe(mechanism).cases)
        words = [f"{mechanism}:{described.name}"]
        heads, queries = _choice(draw, (1, 2)), _choice(draw, (1, 2, 3))
        # a causal mask needs a key for each query
        related = {"H": heads, "D": heads * _choice(draw, (2, 3, 4)), "Lq": queries, "Lk": queries + heads}
        for symbol in described.sizes:
            size = related.get(symbol) or _choice(draw, (1, 2, 3, 5))
            words += _flag(draw, SYMBOLS_BY_NAME[symbol].flag, str(size))
        usable = [option for option in described.options if option in _OPTIONS]
        chosen = draw(st.sets(st.sampled_from(usable), max_size=2)) if usable else set()
        if "mask_value" in chosen:
            chosen |= {"causal"}
        for option in sorted(chosen):
            words += _OPTIONS[option]
        status = _FINE
    else:
        target, more, status = _choice(
            draw,
            (
                ("code.py:Attention", ("--init", "D, H", "--input", "x: B L D"), _FINE),
                ("code:Attention", ("--init", "D, H", "--input", "x: B L D"), _FINE),
                ("code.py:Wrong", ("--init=D,H", "--input=x:B L D"), _FINE),
                ("code.py:attend", ("--input", "query: B L D", "--input", "key: B L D", "--input",
                "value: B L D"), _FINE),
                ("code.py:double", ("--input", "x: B L D", "--with", "y=torch.ones(D)"), _FINE),
                ("code.py:fails", ("--input", "x: B L D"), _FOUND),
                ("code.py:case", (), _FINE),
                ("own", (), _FINE),
            ),
        )  # fmt: skip
        words = [target, *more]
        heads = _choice(draw, (1, 2))
        words += ["--length", str(_choice(draw, (2, 3, 4))), "--batch", str(_choice(draw, (1, 2)))]
        if target != "code.py:case":
            words += ["--heads", str(heads), "--d-model", str(heads * _choice(draw, (2, 4)))]
    if _one_in(draw, 5):
        words += _flag(draw, "--seed", _choice(draw, ("0", "1", "4294967296")))
    if _one_in(draw, 6):
        words += _flag(draw, "--dtype", _choice(draw, ("float64", "float32", "bfloat16")))
    return tuple(words), status, ()


@st.composite
def _trace(draw: DrawFn) -> Line:
    words, statuses, matches = draw(_target())
    if _one_in(draw, 8):
        words = (*words, "--grad")
    if _one_in(draw, 8) and not {"--grad"} & {*words}:
        words = (*words, "--device", "meta")
    if _one_in(draw, 20):
        return Line(("trace", "--all"), _FINE)
    return _view(draw, Line(("trace", *words), statuses), matches)


@st.composite
def _check(draw: DrawFn) -> Line:
    words, statuses, _ = draw(_target(own_only=not _one_in(draw, 3)))
    comments_only = draw(st.booleans())
    if "code.py:Wrong" in words:
        statuses = _FINE if comments_only else _FOUND
    elif {"code.py:double", "code.py:attend", "code.py:case"} & {*words}:
        statuses = _EITHER
    line = Line(("check", *words), _EITHER if "code.py:fails" in words else statuses)
    if comments_only:
        line = line.plus("--select", "AS0")
    elif _one_in(draw, 4):
        line = line.plus(*_flag(draw, "--ignore", "AS204"))
    format_ = _choice(draw, ("", "text", "markdown", "json", "sarif", "github"))
    if format_:
        line = line.plus(*_flag(draw, "--format", format_), shows={"json": "value", "sarif": "sarif"}.get(format_))
    if format_ in ("", "text", "markdown") and _one_in(draw, 5):
        line = line.plus("--pattern")
    # what can't be decided ends with status 2, with a report
    return _written(draw, replace(line, statuses=line.statuses | {2}))


@st.composite
def _annotate(draw: DrawFn) -> Line:
    target = _choice(draw, ("code.py:Attention", "code.py:attend", "code.py:double"))
    inputs = {
        "code.py:Attention": ("--init", "D, H", "--input", "x: B L D", "--heads", "2"),
        "code.py:attend": ("--input", "query: B L D", "--input", "key: B L D", "--input", "value: B L D"),
        "code.py:double": ("--input", "x: B L D"),
    }[target]
    line = Line(("annotate", target, *inputs, *SIZES, "--style", "comment"), _FINE)
    if _one_in(draw, 4):
        line = replace(line, words=tuple(word for word in line.words if word not in ("--style", "comment")))
    if _one_in(draw, 4):
        return line.plus("--write", changes=("code.py",))
    return _written(draw, line)


_VALID = {
    "show": (_show(), 28),
    "diff": (_diff(), 28),
    "reference": (_reference(), 26),
    "trace": (_trace(), 13),
    "check": (_check(), 4),
    "annotate": (_annotate(), 1),
}


@st.composite
def _mistaken(draw: DrawFn) -> Line:
    """Draw a line that is invalid for one reason."""
    how = _choice(draw, tuple(_MISTAKES))
    return _MISTAKES[how](draw)


_BASES = {
    "trace": Line(("trace", "average", *SIZES), _FINE),
    "check": Line(("check", "code.py:Attention", "--init", "D, H", "--input", "x: B L D"), _FINE),
    "annotate": Line(("annotate", "code.py:Attention", "--init", "D, H", "--input", "x: B L D"), _FINE),
    "diff": Line(("diff", "average.json", "heads.json"), _FINE),
    "show": Line(("show", "heads.json"), _FINE),
}


def _bad_value(draw: DrawFn) -> Line:
    verb = _choice(draw, tuple(_FLAGS_OF))
    flag = _choice(draw, _FLAGS_OF[verb])
    value = _choice(draw, _BAD_VALUES[flag])
    base = _BASES[verb]
    words = (f"{flag}={value}",) if draw(st.booleans()) or value.startswith("-") else (flag, value)
    return base.refused(f"{flag} has a bad value", *words)


def _bad_construction(draw: DrawFn) -> Line:
    flag = _choice(draw, ("--init", "--input", "--with"))
    verb = _choice(draw, ("trace", "check", "annotate"))
    given = {"--init": "D, H", "--input": "x: B L D"}
    target = "code.py:double" if flag == "--with" else "code.py:Attention"
    given = {"--input": "x: B L D"} if flag == "--with" else given
    words = [word for name, value in given.items() if name != flag for word in (name, value)]
    return Line((verb, target, *words), _FINE).refused(
        f"{flag} has a bad value", f"{flag}={_choice(draw, _BAD_VALUES[flag])}"
    )


def _unknown_flag(draw: DrawFn) -> Line:
    base = _BASES[_choice(draw, tuple(_BASES))]
    flag = _choice(draw, ("--nosuch", "--hed", "-x", "--batch-size=3", "--Heads", "--\x1b[31m", "--é", "---format"))
    place = draw(st.integers(1, len(base.words)))
    refused = base.refused("an unknown flag")
    return replace(refused, words=(*base.words[:place], flag, *base.words[place:]))


def _missing_value(draw: DrawFn) -> Line:
    verb = _choice(draw, tuple(_FLAGS_OF))
    return _BASES[verb].refused("a flag without its value", _choice(draw, _FLAGS_OF[verb]))


def _extra_argument(draw: DrawFn) -> Line:
    words = (("glossary",), ("catalog", "average"), ("rule", "AS201"))
    base = _choice(draw, (*_BASES.values(), *(Line(each, _FINE) for each in words)))
    return base.refused("an extra argument", _choice(draw, ("extra", "", "x y", *HOSTILE)))


def _unknown_name(draw: DrawFn) -> Line:
    name = _choice(draw, ("nosuch", "mutli-head", "code.py", "code.py:", "code.py:nosuch", ":x", "no.py:f", *HOSTILE))
    verb = _choice(draw, ("trace", "check", "annotate", "catalog", "rule", "show", "diff", ""))
    if verb == "diff":
        sides = draw(st.permutations([name, "heads.json"]))
        return Line(("diff", *sides), _CANNOT, why="an unknown name")
    if verb == "":
        return Line((name,), _CANNOT, why="an unknown verb")
    return Line((verb, name), _CANNOT, why="an unknown name")


def _forbidden_together(draw: DrawFn) -> Line:
    words = _choice(
        draw,
        (
            ("trace", "--format", "json", "--explain"),
            ("trace", "--format", "sarif"),
            ("trace", "--length", "3", "--queries", "3"),
            ("trace", "--heads", "3", "--d-model", "4"),
            ("trace", "average", "--all"),
            ("trace", "--all", "--batch", "2"),
            ("trace", "average", "--keys", "3"),
            ("trace", "average", "--dropout", "0.1"),
            ("trace", "code.py:double", "--input", "x: B", "--causal"),
            ("trace", "code.py:double", "--input", "x: B", "--with", "x=1"),
            ("trace", "code.py:double", "--input", "x: B", "--input", "x: L"),
            ("trace", "average", "--input", "x: B"),
            ("check", "code.py:double", "--input", "x: B", "--format", "json", "--pattern"),
            ("check", "code.py:double", "--input", "x: B", "--format", "html"),
            ("annotate",),
            ("annotate", "average"),
            ("annotate", "code.py:double", "--input", "x: B", "--enforce", "--style", "comment"),
            ("annotate", "code.py:double", "--input", "x: B", "--force"),
            ("annotate", "code.py:double", "--input", "x: B", "--write", "--output", "out"),
            ("annotate", "code.py:double", "--input", "x: B", "--output", "code.py"),
            ("diff", "average.json", "old"),
            ("diff", "average.json"),
            ("diff", "average.json", "heads.json", "--batch", "3"),
            ("diff", "batch.json", "heads.json"),
            ("diff", "other.json", "heads.json"),
            ("diff", "code.py", "heads.json"),
            ("show",),
            ("show", "batch.json"),
            ("show", "other.json"),
            ("show", "average.txt"),
            ("show", "code.py"),
            ("show", "old"),
            ("show", "/dev/null"),
            ("show", "heads.json", "--format", "json", "--match", "scores"),
            ("show", "heads.json", "--columns", ""),
            ("several",),
            ("rule", "AS201", "AS202"),
        ),
    )
    return Line(words, _CANNOT, why="what doesn't fit together")


_MISTAKES = {
    "value": _bad_value,
    "more values": _bad_value,
    "construction": _bad_construction,
    "flag": _unknown_flag,
    "missing": _missing_value,
    "extra": _extra_argument,
    "name": _unknown_name,
    "together": _forbidden_together,
}


@st.composite
def _lines(draw: DrawFn) -> Line:
    kind = draw(st.integers(0, 99))
    if kind < 6:
        words, statuses, content, why = draw(pyproject_lines())
        return Line(words, statuses, why=why, pyproject=content)
    if kind < 40:
        line = draw(_mistaken())
        return replace(line, follows_hint=_one_in(draw, 10))
    names = [name for name, (_, weight) in _VALID.items() for _ in range(weight)]
    line = draw(_VALID[_choice(draw, names)][0])
    if _one_in(draw, 5):
        line = replace(line, environment={"COLUMNS": _choice(draw, ("40", "1", "300", "0", "x", "", None))})
    return line


def lines(harness: Harness) -> SearchStrategy[Line]:
    """Return a strategy for command lines: three of five are valid."""
    project_files(harness)
    return _lines()


def attempt(line: Line, harness: Harness) -> Verdict:
    """Run a line, and judge it by what it should have done."""
    files = dict(project_files(harness))
    if line.pyproject is not None:
        files["pyproject.toml"] = line.pyproject
    verdict = Verdict(line.valid)
    written: list[str] = []

    def inspect(outcome: Outcome, folder: Path) -> None:
        if line.output is not None and (folder / line.output).exists():
            written.append((folder / line.output).read_bytes().decode())
        if line.follows_hint and outcome.status == 2:
            _follow_hint(outcome, folder, harness, verdict)

    outcome = run_in(
        harness,
        files,
        Command(words=line.words, environment=line.environment, fork_server=line.words[:1] == ("annotate",)),
        verdict,
        [*line.changes, *([str(Path(line.output))] if line.output is not None else [])],
        sorted(line.statuses),
        None if line.follows_hint else inspect,
    )
    if line.follows_hint and outcome.status == 2:
        with harness.case_folder(files) as folder:
            _follow_hint(outcome, folder, harness, verdict)
    verdict.work = {line.words[0] if line.words else "": outcome.seconds}
    if outcome.status == 2 and line.words:
        _judge_refusal(line, outcome, verdict)
    elif line.shows is not None and outcome.status in (0, 1):
        if line.output is not None and not written:
            verdict.problems.append(f"no file {line.output!r}")
        text = written[0] if written else outcome.out
        explained, width = "--explain" in line.words, _width(line.environment.get("COLUMNS", "100"))
        checked(verdict, f"the {line.shows}", lambda: assert_format(line.shows or "", text, width, explained))
    return verdict


def _width(columns: str | None) -> int:
    return max(int(columns), 40) if columns and columns.isdecimal() and int(columns) else 100


def assert_format(name: str, text: str, width: int, explained: bool) -> None:
    """Assert that a text is valid in its format."""
    if name == "html":
        assert text.lower().startswith("<!doctype html>") and text.rstrip().endswith("</html>"), text[:200]
    elif name == "value":
        assert isinstance(json.loads(text), dict)
    elif name == "sarif":
        _SARIF.validate(json.loads(text))
    else:
        assert_drawn(name, text, width, explained)


def _judge_refusal(line: Line, outcome: Outcome, verdict: Verdict) -> None:
    lines_ = outcome.err.splitlines()
    if line.statuses != _CANNOT:  # a batch or a check that is incomplete says so in its report
        return
    if outcome.out:
        verdict.problems.append(f"standard output with an error: {outcome.out[:200]!r}")
    errors = [text for text in lines_ if text.startswith("error: ")]
    if len(errors) != 1 or lines_[:1] != errors:
        verdict.problems.append(f"no single error line: {outcome.err[:400]!r}")
    if [text for text in lines_[1:] if not text.startswith("hint: ")] or len(lines_) != 2:
        verdict.problems.append(f"no single hint line after the error: {outcome.err[:400]!r}")
    if not all(text.isprintable() for text in lines_):
        verdict.problems.append(f"control characters: {outcome.err[:400]!r}")


def _follow_hint(outcome: Outcome, folder: Path, harness: Harness, verdict: Verdict) -> None:
    """Run the commands that a hint shows: they must at least be understood."""
    hint = outcome.err.rpartition("hint: ")[2].strip()
    for found in re.findall(r"attnshape (?:trace|check|show|diff|rule|catalog|glossary)?[^,;:]* --help", hint):
        done = harness.run(Command(words=tuple(shlex.split(found)[1:])), folder)
        if done.status:
            verdict.problems.append(f"the hint's command {found!r} has status {done.status}: {done.err[:200]}")
    for found in re.findall(r"attnshape (?:catalog|glossary|rule AS\d+)(?: [\w-]+)?$", hint):
        done = harness.run(Command(words=tuple(shlex.split(found)[1:])), folder)
        if done.status:
            verdict.problems.append(f"the hint's command {found!r} has status {done.status}: {done.err[:200]}")


def describe_line(line: Line) -> str:
    """Return the line as it is typed, with what is unusual around it."""
    words = shlex.join(("attnshape", *(word.encode(errors="backslashreplace").decode() for word in line.words)))
    around = [f"{name}={value}" for name, value in line.environment.items()]
    toml = f"\n--- pyproject.toml\n{line.pyproject.decode(errors='backslashreplace')}" if line.pyproject else ""
    return f"{' '.join(around)} {words}   # {line.why}{toml}".strip()


FAMILY = Family("command-lines", lines, attempt, describe_line, fixed_cases=60, long_cases=20_000)
