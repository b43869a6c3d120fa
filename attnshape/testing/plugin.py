"""The pytest plugin: the fixture `shape_snapshot`, which compares a trace with a file beside the test; `--attnshape`.

It imports torch only once a test makes a trace.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from attnshape.model.trace import Trace

FOLDER = "snapshots"
FLAG = "--shapes-update"
WATCH_FLAG = "--attnshape"
_OUTPUT = "attnshape_snapshots"
_LONGEST = 100
"""The most characters of a file's name."""
_MOST_FILES = 10
"""The most files that the summary names."""
_MOST_LINES = 80
"""The most lines of a table of differences."""


class Snapshots:
    """The snapshots of one test run: those that were written, and those that no test uses."""

    def __init__(self) -> None:
        self.written: set[str] = set()
        self.unused: set[str] = set()
        self.known: dict[Path, set[str]] = {}
        """By the folder of each module that was collected, the names of the snapshots that its tests use."""


_KEY = pytest.StashKey[Snapshots]()
_FOLDER = pytest.StashKey[str]()
"""Where the processes of this run leave the attention that they captured."""
_DIFFERS = pytest.StashKey[bool]()
"""Set for a test whose trace differs from its snapshot."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flag."""
    group = parser.getgroup("attnshape")
    group.addoption(FLAG, action="store_true", help="Write the snapshots of shape_snapshot again.")
    group.addoption(WATCH_FLAG, action="store_true", help="Report the attention that the tests call.")


def pytest_configure(config: pytest.Config) -> None:
    """Start with no snapshots; with the flag, watch this process, and each worker, from now on."""
    config.stash[_KEY] = Snapshots()
    if not config.getoption(WATCH_FLAG):
        return
    from attnshape.programs.activation import activate, is_active

    if not is_active():  # as under `attnshape run`
        folder = getattr(config, "workerinput", {}).get(_OUTPUT)
        if folder is None:
            folder = config.stash[_FOLDER] = tempfile.mkdtemp(prefix="attnshape-run-")
        activate(folder)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker where to leave what it captures."""
    if _FOLDER in node.config.stash:
        node.workerinput[_OUTPUT] = node.config.stash[_FOLDER]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Watch no longer, and remove what was captured."""
    if _FOLDER in config.stash:
        from attnshape.programs.activation import deactivate

        deactivate()
        shutil.rmtree(config.stash[_FOLDER], ignore_errors=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Note which tests use snapshots, also those that don't run."""
    known = item.config.stash[_KEY].known.setdefault(_folder(item), set())
    if "shape_snapshot" in getattr(item, "fixturenames", ()):
        known.add(_stem(_name(item)))


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Find unused snapshots, unless a part of a module was collected; a worker reports them to its controller."""
    snapshots = session.config.stash[_KEY]
    part = any("::" in argument for argument in session.config.args) or session.config.getoption("lf", False)
    for folder, known in snapshots.known.items() if not part else ():
        snapshots.unused |= {str(path) for path in folder.glob("*.txt") if path.stem.partition("@")[0] not in known}
    if session.config.getoption(WATCH_FLAG):
        from attnshape.programs.activation import save_captures

        save_captures(is_final=True)
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output[_OUTPUT] = [sorted(snapshots.written), sorted(snapshots.unused)]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Shorten the summary's line of a difference, which continuous integration would otherwise get twice."""
    outcome = yield
    crash = getattr(outcome.get_result().longrepr, "reprcrash", None)
    if crash is not None and _DIFFERS in item.stash:
        crash.message = crash.message.partition("\n")[0]


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Add what a worker reports."""
    written, unused = getattr(node, "workeroutput", {}).get(_OUTPUT, ((), ()))
    snapshots = node.config.stash[_KEY]
    snapshots.written |= set(written)
    snapshots.unused |= set(unused)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """List the snapshots that were written, and those that no test uses."""
    snapshots = config.stash[_KEY]
    for words, files in (("written", snapshots.written), ("that no test uses", snapshots.unused)):
        if files:
            count = "1 snapshot" if len(files) == 1 else f"{len(files)} snapshots"
            named = _relative(sorted(files)[:_MOST_FILES], config)
            named += [f"and {len(files) - _MOST_FILES} more"] * (len(files) > _MOST_FILES)
            terminalreporter.write_line(f"attnshape: {count} {words}: {', '.join(named)}")
    if _FOLDER in config.stash:
        from attnshape.pipelines.run import summarize
        from attnshape.programs.store import load
        from attnshape.reporters.program import program_text

        summary = summarize(load(config.stash[_FOLDER]))
        terminalreporter.write_line(
            program_text(summary, max(terminalreporter._tw.fullwidth, 40), color=False).rstrip()
        )


@pytest.fixture
def shape_snapshot(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Compare a trace with its snapshot: `shape_snapshot(Attention, init="D, H", inputs={"x": "B L D"})`.

    Call it with a `Trace`, or with the arguments of `attnshape.trace`. Where a test has several snapshots, each after
    the first needs a `name`. `pytest --shapes-update` writes the files, `snapshots/<test module>/<test>.txt` beside the
    test.
    """
    update = bool(request.config.getoption(FLAG))
    snapshots = request.config.stash[_KEY]
    compared: set[Path] = set()

    def compare(target: Trace | str | Callable[..., Any], /, *, name: str | None = None, **how: Any) -> None:
        __tracebackhide__ = True
        path = _folder(request.node) / f"{_stem(_name(request.node))}{'@' + _safe(name) if name else ''}.txt"
        if path in compared:
            pytest.fail("a test's second snapshot needs a name of its own: shape_snapshot(…, name=…)", pytrace=False)
        compared.add(path)
        trace = _trace(target, how)
        if trace.failure is not None:
            # a snapshot of a failure would always pass
            pytest.fail(_failed(trace, update), pytrace=False)
        if update:
            snapshots.written |= {str(path)} if _write(path, trace) else set()
        elif (problem := _problem(path, trace, request.config)) is not None:
            request.node.stash[_DIFFERS] = True
            pytest.fail(problem, pytrace=False)

    return compare


def _trace(target: Trace | str | Callable[..., Any], how: dict[str, Any]) -> Trace:
    from attnshape.model.trace import Trace

    if not isinstance(target, Trace):
        from attnshape.api import trace

        return trace(target, **how)
    if how:
        raise TypeError(f"a Trace is complete: it takes no {', '.join(how)}")
    return target


def _failed(trace: Trace, update: bool) -> str:
    from attnshape.reporters.escaping import visible

    failure = trace.failure
    assert failure is not None
    where = f" ({visible(failure.source.file)}:{failure.source.line})" if failure.source is not None else ""
    step = visible(failure.expression or failure.operation or "a step that isn't known")
    what = visible(failure.explanation or failure.error)
    hint = "; no snapshot was written" if update else ""
    return f"{visible(trace.target)} fails at {step}{where}: {what}\nhint: fix it first{hint}"


def _write(path: Path, trace: Trace) -> bool:
    """Write a snapshot, and return whether that changed the file."""
    from attnshape.comparison.snapshot import snapshot_of, write_snapshot
    from attnshape.runtime.files import write_atomically

    text = write_snapshot(snapshot_of(trace))
    if path.is_file() and path.read_bytes() == text.encode():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.encode())  # another worker or run may read it meanwhile
    return True


def _problem(path: Path, trace: Trace, config: pytest.Config) -> str | None:
    """Return how a trace differs from its snapshot, None if it doesn't."""
    from attnshape.comparison.compare import compare
    from attnshape.comparison.snapshot import read_snapshot, snapshot_of
    from attnshape.errors import AttnshapeError
    from attnshape.reporters.escaping import visible

    (shown,) = _relative([str(path)], config)
    if not path.is_file():
        return f"there is no snapshot {shown}\nhint: pytest {FLAG} writes it; read it before you keep it"
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        kept, current = read_snapshot(text, shown), snapshot_of(trace)
        difference = compare(kept, current)
    except AttnshapeError as error:
        return f"{visible(error.message)}\nhint: {visible(error.hint or '')}"
    if (kept.behaviour is None) != (current.behaviour is None):
        holder, other = (shown, "the test") if current.behaviour is None else ("the test", shown)
        return f"{holder} has behaviour, and {other} doesn't\nhint: if that is right, pytest {FLAG} updates it"
    if not difference:
        return None
    lines = str(difference).split("\n")
    if len(lines) > _MOST_LINES:
        lines = [*lines[:_MOST_LINES], f"… and {len(lines) - _MOST_LINES} lines more"]
    table = "\n".join(lines)
    return f"the shapes aren't those of {shown}\n\n{table}\n\nhint: if they are right, pytest {FLAG} updates it"


def _folder(item: Any) -> Path:
    return Path(item.path).parent / FOLDER / Path(item.path).stem


def _name(item: pytest.Item) -> str:
    """Return a test's name within its module, with the classes around it."""
    return ".".join([*(node.name for node in item.listchain() if isinstance(node, pytest.Class)), item.name])


def _stem(name: str) -> str:
    """Return the name of a test's snapshot, without its suffix.

    >>> _stem("test_heads[4-8]"), _stem("test_mask[a/b]")
    ('test_heads-4-8', 'test_mask-a_b-c14cdd')
    """
    function, bracket, case = name.partition("[")
    return f"{_safe(function)}-{_safe(case.removesuffix(']'))}" if bracket else _safe(function)


def _safe(text: str) -> str:
    """Return a text as a part of a file name, with a digest where characters had to be replaced."""
    safe = re.sub(r"[^\w.-]", "_", text, flags=re.ASCII)[:_LONGEST]
    return safe if safe == text else f"{safe}-{hashlib.sha256(text.encode(errors='replace')).hexdigest()[:6]}"


def _relative(files: Iterable[str], config: pytest.Config) -> list[str]:
    from attnshape.reporters.escaping import visible

    root = config.rootpath
    paths = [Path(file).relative_to(root) if Path(file).is_relative_to(root) else file for file in files]
    return [visible(str(path)) for path in paths]
