"""The pytest plugin: the fixture `shape_snapshot`, which compares a trace with a file beside the test.

Nothing of it imports torch before a test asks for a trace.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attnshape.model import Trace

FOLDER = "snapshots"
FLAG = "--shapes-update"
_OUTPUT = "attnshape_snapshots"
_LONGEST = 100
"""The most characters of a file's name."""
_MOST_FILES = 10
"""That are named at the end."""
_MOST_LINES = 80
"""Of a table of differences, before it is cut."""


class Snapshots:
    """The snapshots of one test run: which were written, which are used, and which no test asks for."""

    def __init__(self) -> None:
        self.written: set[str] = set()
        self.folders: set[Path] = set()
        """Where the snapshots of the tests that were found would lie."""
        self.asking: set[pytest.Item] = set()
        self.unused: set[str] = set()

    def find_unused(self) -> None:
        """Look beside the tests that were found for files that none of them reads."""
        stems: dict[Path, set[str]] = {folder: set() for folder in self.folders}
        for item in self.asking:
            stems[_folder(item)].add(_stem(_name(item)))
        for folder, known in stems.items():
            self.unused |= {str(path) for path in folder.glob("*.txt") if path.stem.partition("@")[0] not in known}


_KEY = pytest.StashKey[Snapshots]()
_DIFFERS = pytest.StashKey[bool]()
"""Of a test whose trace isn't that of its snapshot."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag."""
    group = parser.getgroup("attnshape")
    group.addoption(FLAG, action="store_true", help="Write the snapshots of shape_snapshot anew.")


def pytest_configure(config: pytest.Config) -> None:
    """Begin with no snapshots."""
    config.stash[_KEY] = Snapshots()


def pytest_itemcollected(item: pytest.Item) -> None:
    """Note which tests have snapshots, also those that aren't run."""
    snapshots = item.config.stash[_KEY]
    snapshots.folders.add(_folder(item))
    if "shape_snapshot" in getattr(item, "fixturenames", ()):
        snapshots.asking.add(item)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Find what is unused, where each module's tests were all found; a worker tells the process that started it."""
    snapshots = session.config.stash[_KEY]
    part = any("::" in argument for argument in session.config.args) or session.config.getoption("lf", False)
    if not part:
        snapshots.find_unused()
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_OUTPUT] = [sorted(snapshots.written), sorted(snapshots.unused)]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Leave the first line of what differs to the summary, where continuous integration would get the table again."""
    outcome = yield
    crash = getattr(outcome.get_result().longrepr, "reprcrash", None)
    if crash is not None and _DIFFERS in item.stash:
        crash.message = crash.message.partition("\n")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take what a worker tells."""
    written, unused = getattr(node, "workeroutput", {}).get(_OUTPUT, ((), ()))
    snapshots = node.config.stash[_KEY]
    snapshots.written |= set(written)
    snapshots.unused |= set(unused)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say what was written, and which files no test asks for."""
    snapshots = config.stash[_KEY]
    for words, files in (("written", snapshots.written), ("that no test asks for", snapshots.unused)):
        if files:
            count = "1 snapshot" if len(files) == 1 else f"{len(files)} snapshots"
            named = _relative(sorted(files)[:_MOST_FILES], config)
            named += [f"and {len(files) - _MOST_FILES} more"] * (len(files) > _MOST_FILES)
            terminalreporter.write_line(f"attnshape: {count} {words}: {', '.join(named)}")


@pytest.fixture
def shape_snapshot(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compare a trace with its snapshot: `shape_snapshot(Attention, init="D, H", inputs={"x": "B L D"})`.

    It is called with a `Trace`, or with what `attnshape.trace` takes. Where a test has several, each after the first
    needs a `name`. `pytest --shapes-update` writes the files, `snapshots/<test module>/<test>.txt` beside the test.
    """
    update = bool(request.config.getoption(FLAG))
    snapshots = request.config.stash[_KEY]
    asked: set[Path] = set()

    def compare(target: Trace | str | Callable[..., Any], /, *, name: str | None = None, **how: Any) -> None:
        __tracebackhide__ = True
        path = _folder(request.node) / f"{_stem(_name(request.node))}{'@' + _safe(name) if name else ''}.txt"
        if path in asked:
            pytest.fail("a test's second snapshot needs a name of its own: shape_snapshot(…, name=…)", pytrace=False)
        asked.add(path)
        trace = _trace(target, how)
        if trace.failure is not None:
            # a failure that was written once would pass ever after
            pytest.fail(_failed(trace, update), pytrace=False)
        if update:
            if _write(path, trace):
                snapshots.written.add(str(path))
            return
        problem = _problem(path, trace, request.config)
        if problem is not None:
            request.node.stash[_DIFFERS] = True
            pytest.fail(problem, pytrace=False)

    return compare


def _trace(target: Trace | str | Callable[..., Any], how: dict[str, Any]) -> Trace:
    from attnshape.model import Trace

    if not isinstance(target, Trace):
        from attnshape.api import trace

        return trace(target, **how)
    if how:
        raise TypeError(f"a Trace has been made already: it takes no {', '.join(how)}")
    return target


def _failed(trace: Trace, update: bool) -> str:
    from attnshape.render.text import visible

    failure = trace.failure
    assert failure is not None
    where = f" ({visible(failure.source.file)}:{failure.source.line})" if failure.source is not None else ""
    step = visible(failure.expression or failure.operation or "a step that isn't known")
    what = visible(failure.explanation or failure.error)
    hint = "; no snapshot was written" if update else ""
    return f"{visible(trace.target)} fails at {step}{where}: {what}\nhint: mend it first{hint}"


def _write(path: Path, trace: Trace) -> bool:
    """Write a snapshot, and say whether the file was another before."""
    from attnshape.comparing.snapshot import snapshot_of, write_snapshot

    text = write_snapshot(snapshot_of(trace))
    if path.is_file() and path.read_bytes() == text.encode():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    # whole at once, whichever worker or run reads it meanwhile
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_bytes(text.encode())
    beside.replace(path)
    return True


def _problem(path: Path, trace: Trace, config: pytest.Config) -> str | None:
    """Return what is wrong with a trace beside its snapshot, None where nothing is."""
    from attnshape.comparing.compare import compare
    from attnshape.comparing.snapshot import snapshot_of
    from attnshape.comparing.snapshot_read import read_snapshot
    from attnshape.errors import AttnshapeError

    (shown,) = _relative([str(path)], config)
    if not path.is_file():
        return f"there is no snapshot {shown}\nhint: pytest {FLAG} writes it; read it before you keep it"
    try:
        difference = compare(
            read_snapshot(path.read_text(encoding="utf-8", errors="replace"), shown), snapshot_of(trace)
        )
    except AttnshapeError as error:
        return f"{error.message}\nhint: {error.hint}"
    if not difference:
        return None
    lines = str(difference).split("\n")
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"… and {len(lines) - _MOST_LINES} lines more"]
    table = "\n".join(lines)
    return f"the shapes aren't those of {shown}\n\n{table}\n\nhint: where they are meant, pytest {FLAG} writes it anew"


def _folder(item: Any) -> Path:
    return Path(item.path).parent / FOLDER / Path(item.path).stem


def _name(item: pytest.Item) -> str:
    """Return a test's name within its module, with the classes around it."""
    return ".".join([*(node.name for node in item.listchain() if isinstance(node, pytest.Class)), item.name])


def _stem(name: str) -> str:
    """Return the name of a test's file, without its ending.

    >>> _stem("test_heads[4-8]"), _stem("test_mask[a/b]")
    ('test_heads-4-8', 'test_mask-a_b-c14cdd')
    """
    function, bracket, case = name.partition("[")
    return f"{_safe(function)}-{_safe(case.removesuffix(']'))}" if bracket else _safe(function)


def _safe(text: str) -> str:
    """Return a text as a part of a file's name; where that isn't the text itself, with what tells it from others."""
    safe = re.sub(r"[^\w.-]", "_", text, flags=re.ASCII)[:_LONGEST]
    return safe if safe == text else f"{safe}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:6]}"


def _relative(files: Iterable[str], config: pytest.Config) -> list[str]:
    root = config.rootpath
    return [str(Path(file).relative_to(root)) if Path(file).is_relative_to(root) else file for file in files]
