"""Faults of streams, disks, limits and surroundings: a table, of which each row is tried."""

from __future__ import annotations

import json
import os
import random
import shlex
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from tests.fuzz.cases import Family, Verdict, checked
from tests.fuzz.harness import Command, Harness, Outcome, changes, contents
from tests.fuzz.project import PYPROJECT, project_files
from tests.robust.output_parsers import assert_drawn

_SHOW = ("show", "heads.json")
_TRACE = ("trace", "average", "--length", "3", "--d-model", "4", "--format", "json")
_CHECK = ("check", "average", "--length", "3", "--d-model", "4", "--format", "json")
_ANNOTATE = ("annotate", "code.py:double", "--input", "x: B L D", "--style", "comment")
_REFUSED = ("trace", "nosuch")
_FINE, _CANNOT, _EITHER = frozenset({0}), frozenset({2}), frozenset({0, 2})
Prepare = Callable[[Path], None]


@dataclass(frozen=True)
class Fault:
    """What is wrong around a command, and what should come of it."""

    name: str
    words: tuple[str, ...]
    statuses: frozenset[int]
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the command."""
    prepare: Prepare | None = None
    whole: tuple[str, ...] = ()
    """The files that are whole if they are there."""
    read: str | None = None
    """The fifo that somebody reads."""
    unreadable_errors: bool = False
    """Whether nobody can read the errors."""
    python: tuple[str, ...] | None = None
    """Options of the interpreter, of a process that starts as usual."""
    folder: str = "case"


def table() -> list[Fault]:
    """Return the faults, in an order in which neighbours differ."""
    rows = [*_streams(), *_outputs(), *_limits(), *_surroundings(), *_inputs(), *_projects(), *_interpreters()]
    random.Random(7).shuffle(rows)
    return rows


def _streams() -> Iterator[Fault]:
    for closed in ("0", "1", "2", "01", "02", "12", "012"):
        streams = tuple("closed" if str(number) in closed else ("/dev/null", "", "")[number] for number in range(3))
        hidden = "2" in closed
        for words, statuses in ((_SHOW, _FINE), (_TRACE, _FINE), (_REFUSED, _CANNOT)):
            yield Fault(f"closed {closed}", words, statuses, {"streams": streams}, unreadable_errors=hidden)
    yield Fault("closed 012", (*_TRACE, "--output", "x.json"), _FINE, {"streams": ("closed",) * 3}, whole=("x.json",))
    yield Fault("closed 012", _ANNOTATE, _FINE, {"streams": ("closed",) * 3}, unreadable_errors=True)
    yield Fault("closed 012", _CHECK, _FINE, {"streams": ("closed",) * 3}, unreadable_errors=True)
    for words in (_SHOW, _TRACE, _CHECK, _ANNOTATE, ("catalog",), ("--help",), ("diff", "heads.json", "average.json")):
        yield Fault("full stdout", words, _CANNOT, {"streams": ("/dev/null", "/dev/full", "")})
    yield Fault("full stderr", _REFUSED, _CANNOT, {"streams": ("/dev/null", "", "/dev/full")}, unreadable_errors=True)
    yield Fault("full stderr", _TRACE, _FINE, {"streams": ("/dev/null", "", "/dev/full")}, unreadable_errors=True)
    yield Fault(
        "full stdout and stderr",
        _TRACE,
        _CANNOT,
        {"streams": ("/dev/null", "/dev/full", "/dev/full")},
        unreadable_errors=True,
    )
    for read in (0, 1, 100, 5000):
        for words in (_SHOW, _TRACE, ("show", "heads.json", "--format", "html"), ("rule",)):
            yield Fault(f"reader gone after {read} bytes", words, _FINE, {"streams": ("/dev/null", f"pipe:{read}", "")})
    yield Fault(
        "no reader of stderr", _REFUSED, _CANNOT, {"streams": ("/dev/null", "", "pipe:0")}, unreadable_errors=True
    )
    yield Fault("no reader", _TRACE, _FINE, {"streams": ("/dev/null", "pipe:0", "pipe:0")}, unreadable_errors=True)
    yield Fault("stdin is a folder", _TRACE, _FINE, {"streams": ("/tmp", "", "")})


def _outputs() -> Iterator[Fault]:
    def to(name: str) -> tuple[str, ...]:
        return (*_TRACE, "--output", name)

    yield Fault("a folder as output", to("old"), _CANNOT)
    yield Fault("full device as output", to("/dev/full"), _CANNOT)
    yield Fault("null as output", to("/dev/null"), _FINE)
    yield Fault("standard output as output", to("/dev/stdout"), _FINE)
    yield Fault("closed descriptor as output", to("/dev/fd/77"), _CANNOT)
    yield Fault("too long a name", to("n" * 300), _CANNOT)
    yield Fault("too long a path", to("n/" * 3000 + "x"), _CANNOT)
    yield Fault("the longest name", to("n" * 255), _FINE, whole=("n" * 255,))
    yield Fault("no such folder", to("nosuch/x.json"), _CANNOT)
    yield Fault("a file as folder", to("code.py/x.json"), _CANNOT)
    yield Fault(
        "dangling link", to("link"), _FINE, prepare=lambda f: (f / "link").symlink_to("new.json"), whole=("new.json",)
    )
    yield Fault("link to nowhere", to("link"), _CANNOT, prepare=lambda f: (f / "link").symlink_to("no/x"))
    yield Fault("circle of links", to("link"), _CANNOT, prepare=lambda f: (f / "link").symlink_to("link"))
    yield Fault(
        "link to the source",
        (*_ANNOTATE, "--output", "link"),
        _CANNOT,
        prepare=lambda f: (f / "link").symlink_to("code.py"),
    )
    yield Fault(
        "hard link to the source",
        (*_ANNOTATE, "--output", "link"),
        _CANNOT,
        prepare=lambda f: os.link(f / "code.py", f / "link"),
    )
    yield Fault("socket as output", to("socket"), _CANNOT, prepare=_socket)
    yield Fault("fifo as output", to("fifo"), _FINE, prepare=lambda f: os.mkfifo(f / "fifo"), read="fifo")
    yield Fault("/proc file", to("/proc/version"), _CANNOT)
    yield Fault("new /proc file", to("/proc/nosuch"), _CANNOT)
    yield Fault("/sys file", to("/sys/kernel/mm/nosuch"), _CANNOT)
    yield Fault("not UTF-8 name", to("\udcff.json"), _FINE, whole=("\udcff.json",))
    yield Fault("NUL-like name", to("a\x01b"), _FINE, whole=("a\x01b",))
    for mode, name in (
        (0o500, "folder without writing"),
        (0o600, "folder without searching"),
        (0, "folder without rights"),
    ):
        yield Fault(
            name, to("closed/x.json"), _CANNOT, {"without_privileges": True},
            prepare=lambda f, mode=mode: (f / "closed").mkdir(mode=mode),
        )  # fmt: skip
    yield Fault("file without writing", to("x.json"), _CANNOT, {"without_privileges": True}, prepare=_read_only)
    yield Fault(
        "annotate without writing", (*_ANNOTATE, "--write"), _CANNOT, {"without_privileges": True},
        prepare=lambda f: (f / "code.py").chmod(0o400),
    )  # fmt: skip
    for size in (4096, 8192):
        yield Fault(
            "full disk",
            ("show", "heads.json", "--format", "html", "--output", "small/x.html"),
            _CANNOT,
            {"small_disk": size},
            prepare=_small,
        )
    yield Fault(
        "full disk",
        ("trace", "--format", "json", "--output", "small/x.json"),
        _CANNOT,
        {"small_disk": 8192},
        prepare=_small,
    )


def _limits() -> Iterator[Fault]:
    for size in (0, 100, 5000):
        words = ("show", "heads.json", "--format", "html", "--output", "x.html")
        yield Fault(
            f"files of {size} bytes",
            words,
            _CANNOT,
            {"limits": {"FSIZE": size}},
            whole=("x.html",),
            unreadable_errors=True,
        )
        yield Fault(
            f"files of {size} bytes",
            _TRACE,
            _CANNOT if size < 1000 else _EITHER,
            {"limits": {"FSIZE": size}},
            unreadable_errors=True,
        )
        yield Fault(
            f"files of {size} bytes", (*_ANNOTATE, "--write"), _CANNOT if size < 1000 else _FINE,
            {"limits": {"FSIZE": size}}, unreadable_errors=True,
        )  # fmt: skip
    for count in (6, 10, 16):
        yield Fault(f"{count} open files", _TRACE, _EITHER, {"limits": {"NOFILE": count}})
        yield Fault(f"{count} open files", _SHOW, _EITHER, {"limits": {"NOFILE": count}})
    yield Fault("little memory", ("trace", "--length", "3000"), frozenset({0, 1, 2}), {"limits": {"DATA": 400 << 20}})
    yield Fault("little memory", ("show", "x.json"), _CANNOT, {"limits": {"DATA": 500 << 20}}, prepare=_huge)
    yield Fault(
        "little time",
        ("trace", "code.py:double", "--input", "x: B L D", "--length", "2000000"),
        frozenset({0, 2, 137}),
        {"limits": {"CPU": 1}},
    )


def _surroundings() -> Iterator[Fault]:
    yield Fault("folder removed", ("trace", "average", "--format", "json"), _EITHER, {"folder_removed": True})
    yield Fault("folder removed", ("show", "heads.json"), _CANNOT, {"folder_removed": True})
    yield Fault("folder removed", ("catalog",), _FINE, {"folder_removed": True})
    yield Fault("folder removed", ("trace", "--output", "x"), _CANNOT, {"folder_removed": True})
    for name in ("[red]", "a\nb", "注意", "\udcff", "-x", "a b'\"", "x" * 200, "\x1b[31m", "%s{}"):
        yield Fault(f"folder named {name[:9]!r}", ("trace", "own", "--format", "json"), _FINE, folder=name)
        yield Fault(f"folder named {name[:9]!r}", _ANNOTATE, _FINE, folder=name)
    nothing = dict.fromkeys(("HOME", "TERM", "LANG", "PATH", "COLUMNS", "TMPDIR"))
    for environment in (
        nothing, {"HOME": "/nosuch"}, {"HOME": ""}, {"TERM": None}, {"TERM": "dumb"}, {"TERM": "\x1b[31m"},
        {"TMPDIR": "/nosuch"}, {"TMPDIR": "/proc"}, {"TMPDIR": "code.py"}, {"LANG": "C"}, {"LC_ALL": "POSIX"},
        {"LC_ALL": "nosuch.nosuch"}, {"COLUMNS": "-1"}, {"COLUMNS": "9" * 40}, {"COLUMNS": "٣"}, {"COLUMNS": "x"},
        {"NO_COLOR": "1", "FORCE_COLOR": "1"}, {"PYTHONWARNINGS": "error"}, {"TZ": "nosuch"}, {"OMP_NUM_THREADS": "x"},
    ):  # fmt: skip
        name = " ".join(f"{key}={value}"[:20] for key, value in environment.items())
        for words in (_SHOW, _TRACE) if len(environment) == 1 else (_SHOW, _TRACE, _ANNOTATE):
            yield Fault(f"environment {name!r}", words, _FINE, {"environment": environment})
    yield Fault("no temporary folder", _ANNOTATE, _EITHER, {"environment": {"TMPDIR": "/nosuch"}})


def _inputs() -> Iterator[Fault]:
    yield Fault(
        "unreadable file", _SHOW, _CANNOT, {"without_privileges": True}, prepare=lambda f: (f / "heads.json").chmod(0)
    )
    yield Fault(
        "unreadable source",
        ("trace", "own"),
        _CANNOT,
        {"without_privileges": True},
        prepare=lambda f: (f / "code.py").chmod(0),
    )
    yield Fault("a folder as trace", ("show", "old"), _CANNOT)
    yield Fault("a device as trace", ("show", "/dev/null"), _CANNOT)
    yield Fault("memory as trace", ("show", "/proc/self/mem"), _CANNOT)
    yield Fault(
        "circle of links as trace", ("show", "link"), _CANNOT, prepare=lambda f: (f / "link").symlink_to("link")
    )
    yield Fault("not UTF-8 name", ("show", "\udcff.json"), _CANNOT)
    yield Fault(
        "not UTF-8 target", ("trace", "\udcff.py:f", "--input", "x: B", "--format", "json"), _FINE, prepare=_surrogate
    )
    yield Fault(
        "circle of folders", ("diff", "old", "new"), frozenset({1}), prepare=lambda f: (f / "old/self").symlink_to(f)
    )
    yield Fault(
        "fifo in a folder",
        ("diff", "old", "new"),
        frozenset({1}),
        {"seconds": 15},
        prepare=lambda f: os.mkfifo(f / "old/x.json"),
    )
    yield Fault("source is a folder", ("trace", "d.py:f"), _CANNOT, prepare=lambda f: (f / "d.py").mkdir())
    yield Fault(
        "source is a fifo", ("trace", "d.py:f"), _CANNOT, {"seconds": 15}, prepare=lambda f: os.mkfifo(f / "d.py")
    )
    yield Fault(
        "binary source", ("trace", "d.py:f"), _CANNOT, prepare=lambda f: (f / "d.py").write_bytes(bytes(range(256)))
    )
    yield Fault(
        "huge source",
        ("trace", "d.py:f"),
        _CANNOT,
        prepare=lambda f: (f / "d.py").write_bytes(b"x = (" + b"(" * 100_000),
    )


def _projects() -> Iterator[Fault]:
    for name, content in (
        ("invalid", b"[tool"), ("binary", bytes(range(256)) * 9), ("a mark", b"\xef\xbb\xbf" + PYPROJECT),
        ("huge", b"# x\n" * 1_000_000 + b"["), ("deep", b"x = " + b"[" * 100_000), ("UTF-16",
        PYPROJECT.decode().encode("utf-16")),
        ("empty", b""), ("NUL", b"\0" * 100),
    ):  # fmt: skip
        write: Prepare = lambda f, content=content: _replace(f, content)  # noqa: E731
        yield Fault(
            f"pyproject.toml: {name}", ("trace", "own"), _EITHER if name == "a mark" else _CANNOT, prepare=write
        )
        yield Fault(f"pyproject.toml: {name}", _TRACE, _EITHER, prepare=write)
    yield Fault("pyproject.toml is a folder", ("trace", "own"), _CANNOT, prepare=_folder_project)
    yield Fault("pyproject.toml is a fifo", ("trace", "own"), _CANNOT, {"seconds": 15}, prepare=_fifo_project)
    yield Fault("pyproject.toml is a circle", ("trace", "own"), _CANNOT, prepare=_circle_project)
    yield Fault(
        "pyproject.toml is unreadable",
        ("trace", "own"),
        _CANNOT,
        {"without_privileges": True},
        prepare=lambda f: (f / "pyproject.toml").chmod(0),
    )


def _interpreters() -> Iterator[Fault]:
    for options in ((), ("-O",), ("-OO",), ("-I",), ("-X", "utf8=0"), ("-X", "dev"), ("-b",), ("-u",), ("-W", "error")):
        # isolated, it needs the installed package
        yield Fault(f"python {' '.join(options)}", _TRACE, _FINE, python=options)
    yield Fault("python -O", ("annotate", "code.py:double", "--input", "x: B L D"), _CANNOT, python=("-O",))
    for environment in (
        {"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "utf-16"}, {"PYTHONIOENCODING": "cp037"},
        {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}, {"PYTHONHASHSEED": "0"},
        {"PYTHONHASHSEED": "7"},
        {"PYTHONUNBUFFERED": "1"}, {"PYTHONDONTWRITEBYTECODE": "1"}, {"PYTHONOPTIMIZE": "2"}, {"PYTHONMALLOC": "debug"},
        {"PYTHONSTARTUP": "/nosuch"}, {"PYTHONBREAKPOINT": "x"}, {"PYTHONASYNCIODEBUG": "1"},
        {"PYTHONFAULTHANDLER": "1"},
    ):  # fmt: skip
        name = " ".join(f"{key}={value}" for key, value in environment.items())
        yield Fault(name, _SHOW, _FINE, {"environment": environment}, python=())
        if "ENCODING" in name or "UTF8" in name:
            yield Fault(name, ("trace", "注意"), _CANNOT, {"environment": environment}, python=())


def _socket(folder: Path) -> None:
    here = Path.cwd()
    os.chdir(folder)  # the path of a socket may have a hundred bytes
    try:
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind("socket")
    finally:
        os.chdir(here)


def _read_only(folder: Path) -> None:
    (folder / "x.json").write_text("kept")
    (folder / "x.json").chmod(0o400)


def _small(folder: Path) -> None:
    (folder / "small").mkdir()


def _huge(folder: Path) -> None:
    with (folder / "x.json").open("wb") as stream:
        stream.truncate(1 << 30)


def _surrogate(folder: Path) -> None:
    (folder / "\udcff.py").write_text("def f(x):\n    return x * 2\n")


def _replace(folder: Path, content: bytes) -> None:
    (folder / "pyproject.toml").write_bytes(content)


def _folder_project(folder: Path) -> None:
    (folder / "pyproject.toml").unlink()
    (folder / "pyproject.toml").mkdir()


def _fifo_project(folder: Path) -> None:
    (folder / "pyproject.toml").unlink()
    os.mkfifo(folder / "pyproject.toml")


def _circle_project(folder: Path) -> None:
    (folder / "pyproject.toml").unlink()
    (folder / "pyproject.toml").symlink_to("pyproject.toml")


def faults(harness: Harness) -> SearchStrategy[Fault]:
    """Return a strategy for rows of the table."""
    return st.sampled_from(table())


def attempt(case: Fault, harness: Harness) -> Verdict:
    """Run the command under the fault."""
    verdict = Verdict(valid=case.statuses != _CANNOT)
    with harness.case_folder(project_files(harness), case.folder) as folder:
        if case.prepare is not None:
            case.prepare(folder)
        before = contents(folder)
        command = Command(words=case.words, **{"seconds": 30, **case.settings})
        if case.python is not None:
            program = (sys.executable, *case.python, "-m", "attnshape", *case.words)
            command = Command(program=program, **case.settings)
        reader = os.open(folder / case.read, os.O_RDWR | os.O_NONBLOCK) if case.read is not None else None
        outcome = harness.run(command, folder)
        if reader is not None:
            checked(verdict, "what was read", lambda: _assert_whole(os.read(reader, 1 << 16)))
            os.close(reader)
        verdict.statuses.append(outcome.status)
        if outcome.unsupported:
            verdict.skipped = outcome.err.strip()
            return verdict
        written = [*case.whole, *(("code.py",) if "--write" in case.words and outcome.status == 0 else ())]
        if not command.folder_removed:
            verdict.problems += changes(before, contents(folder), written)
        for name in case.whole:
            if (folder / name).exists():
                checked(verdict, name, lambda name=name: _assert_whole((folder / name).read_bytes()))
            elif outcome.status == 0:
                verdict.problems.append(f"no file {name!r}")
    verdict.problems += outcome.problems(sorted(case.statuses))
    if outcome.status == 2 and not case.unreadable_errors:
        _judge_refusal(case, outcome, verdict)
    if outcome.status == 0 and command.streams[1] == "" and "json" in case.words and "--output" not in case.words:
        checked(verdict, "standard output", lambda: json.loads(outcome.out))
    return verdict


def _judge_refusal(case: Fault, outcome: Outcome, verdict: Verdict) -> None:
    encoding = case.settings.get("environment", {}).get("PYTHONIOENCODING", "")
    if encoding in ("utf-16", "cp037"):  # then it isn't UTF-8 that is read here
        return
    errors = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    if len(errors) != 1:
        verdict.problems.append(f"{len(errors)} error lines: {outcome.err[-500:]!r}")


def _assert_whole(content: bytes) -> None:
    text = content.decode()
    if text.startswith("{"):
        assert_drawn("json", text, 100)
    else:
        assert text.rstrip().endswith("</html>"), text[-100:]


def describe(case: Fault) -> str:
    """Return the fault and the command."""
    words = (word.encode(errors="backslashreplace").decode()[:80] for word in ("attnshape", *case.words))
    return f"{case.name}: {shlex.join(words)}"


FAMILY = Family("faults", faults, attempt, describe, fixed_cases=20, long_cases=len(table()), table=table)
