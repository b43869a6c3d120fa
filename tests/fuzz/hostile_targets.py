"""Targets that do what no attention code should: a table of hostile acts, at the moments at which code runs."""

from __future__ import annotations

import inspect
import json
import random
import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from attnshape.cli import check, trace
from attnshape.cli.annotate import annotate
from tests.fuzz.cases import Family, Verdict, checked, run_in
from tests.fuzz.harness import Command, Harness, Outcome
from tests.robust.output_parsers import assert_drawn

LIMIT = 3.0
"""The time limit that is given to attnshape, in seconds."""
SLACK = 2.0
_PATIENCE = 25.0
"""Seconds after which a command that has no time limit is killed."""

_PREAMBLE = """\
import atexit, builtins, contextlib, ctypes, faulthandler, gc, json, locale, logging, os, re, resource, shutil, signal
import subprocess, sys, tempfile, threading, time, warnings

import torch
from torch import nn

class Own(BaseException):
    pass

class Unprintable(Exception):
    def __str__(self):
        raise ValueError("no text")
    __repr__ = __str__

def handler(*arguments):
    pass

def never(*arguments, **named):
    raise RuntimeError("hostile")

"""
# acts that end the process
_ENDS = {
    "exits at once": "os._exit(0)",
    "exits at once with 7": "os._exit(7)",
    "exits at once with 2": "os._exit(2)",
    "segmentation fault": "os.kill(os.getpid(), signal.SIGSEGV)",
    "aborts by signal": "os.kill(os.getpid(), signal.SIGABRT)",
    "kills itself": "os.kill(os.getpid(), signal.SIGKILL)",
    "kills its group": "os.killpg(0, signal.SIGKILL)",
    "null pointer": "ctypes.string_at(0)",
    "aborts": "os.abort()",
    "division fault": "signal.raise_signal(signal.SIGFPE)",
    "overflows the stack": "sys.setrecursionlimit(10**9)\nf = lambda g: [*map(g, [g])]\nf(f)",
    "executes another program": "os.execv('/bin/true', ['true'])",
}
_RAISES = {
    "sys.exit": "sys.exit(0)",
    "sys.exit 3": "sys.exit(3)",
    "sys.exit text": "sys.exit('bye\\n\\x1b[31m')",
    "sys.exit object": "sys.exit(object())",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "GeneratorExit": "raise GeneratorExit",
    "StopIteration": "raise StopIteration",
    "MemoryError": "raise MemoryError",
    "BaseException": "raise Own('own')",
    "hostile text": "raise ValueError('a\\n\\x1b[31m[red]\\u202e| `x`\\0' * 50)",
    "long text": "raise ValueError('x' * 300_000)",
    "no text": "raise Unprintable",
    "group": "raise ExceptionGroup('g', [ValueError(1), Unprintable()])",
    "causes in a circle": "a, b = ValueError(1), ValueError(2)\na.__cause__, b.__cause__ = b, a\nraise a",
    "recursion": "f = lambda: f()\nf()",
    "huge allocation": "torch.empty(10**14)",
    "huge bytes": "bytearray(10**12)",
    "fills the memory": "kept = []\nwhile True:\n    kept.append(bytearray(b'x' * (1 << 27)))",
    "EOFError": "input()",
    "wrong operator": "torch.ones(2, 3) @ torch.ones(2, 3)",
}
_HANGS = {
    "stops itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "loops": "while True:\n    pass",
    "sleeps": "time.sleep(10**6)",
    "sleeps in C": "while True:\n    ctypes.CDLL(None).sleep(1000)",
    "regular expression": "re.match('(a*)*b', 'a' * 100)",
    "torch in a loop": "while True:\n    torch.ones(9) * 2",
    "catches everything": "while True:\n    try:\n        time.sleep(1000)\n    except BaseException:\n        pass",
    "event": "threading.Event().wait()",
    "lock": "lock = threading.Lock()\nlock.acquire()\nlock.acquire()",
    "reads a pipe": "os.read(os.pipe()[0], 1)",
    "ignores signals and sleeps": (
        "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):\n"
        "    signal.signal(number, signal.SIG_IGN)\ntime.sleep(10**6)"
    ),
    "blocks signals and sleeps": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\ntime.sleep(10**6)",
    "waits for a child": "subprocess.run(['sleep', '1000'])",
}
# acts that have nothing to do with the result
_HARMLESS = {
    "prints": "print('printed')",
    "prints megabytes": "print('x' * 3_000_000)",
    "prints control codes": "print('\\x1b[31m\\x1b[2J\\x07\\r', end='')",
    "writes to descriptor 1": "os.write(1, b'partial')",
    "prints to stderr": "print('{}' * 9, file=sys.stderr, end='')",
    "prints from C": "ctypes.CDLL(None).puts(b'from C')",
    "no stdout": "sys.stdout = None",
    "no stderr": "sys.stderr = None",
    "closes stdout": "sys.stdout.close()",
    "closes descriptor 0": "with contextlib.suppress(OSError):\n    os.close(0)",
    "replaces stdout": "import io\nsys.stdout = io.StringIO()",
    "excepthook": "sys.excepthook = never",
    "unraisablehook": "sys.unraisablehook = never",
    "displayhook": "sys.displayhook = never",
    "ignores signals": (
        "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGPIPE):\n"
        "    signal.signal(number, signal.SIG_IGN)"
    ),
    "ignores children": "signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
    "handles signals": (
        "for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD):\n"
        "    signal.signal(number, handler)"
    ),
    "blocks signals": "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))",
    "timer": "signal.signal(signal.SIGALRM, handler)\nsignal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)",
    "wakeup descriptor": "signal.set_wakeup_fd(-1)",
    "deleted folder": "folder = tempfile.mkdtemp()\nos.chdir(folder)\nos.rmdir(folder)",
    "other folder": "os.chdir('/')",
    "umask": "os.umask(0o777)",
    "no environment": "os.environ.clear()",
    "hostile environment": "os.environ.update(COLUMNS='1', PYTHONPATH='/nosuch', TMPDIR='/nosuch', LANG='x')",
    "no path": "sys.path.clear()",
    "no arguments": "sys.argv.clear()",
    "settrace": "sys.settrace(lambda *a: None)",
    "setprofile": "sys.setprofile(lambda *a: None)",
    "gc callbacks": "gc.callbacks.append(handler)\ngc.collect()",
    "gc threshold": "gc.enable()\ngc.set_threshold(1, 1, 1)",
    "warnings": "warnings.simplefilter('error')\nwarnings.showwarning = never",
    "warns": "warnings.warn('a warning\\x1b[31m')",
    "logging": "logging.basicConfig(level=0, force=True)\nlogging.getLogger().warning('logged')",
    "locale": "locale.setlocale(locale.LC_ALL, 'C')",
    "recursion limit": "sys.setrecursionlimit(400)",
    "switch interval": "sys.setswitchinterval(1e-6)",
    "seeds": "torch.manual_seed(1)\ntorch.set_num_threads(1)",
    "print options": "torch.set_printoptions(precision=1, threshold=1)",
    "reads stdin": "sys.stdin.read()",
    "endless daemon thread": "threading.Thread(target=time.sleep, args=(10**6,), daemon=True).start()",
    "endless thread": "threading.Thread(target=time.sleep, args=(10**6,)).start()",
    "busy thread": "def busy():\n    while True:\n        pass\nthreading.Thread(target=busy, daemon=True).start()",
    "exit handler that hangs": "atexit.register(time.sleep, 10**6)",
    "exit handler that exits": "atexit.register(os._exit, 9)",
    "exit handler that raises SystemExit": "atexit.register(sys.exit, 9)",
    "leaves a process": "subprocess.Popen(['sleep', '1000'])",
    "child exits": "if not os.fork():\n    os._exit(3)",
    "child sleeps": "if not os.fork():\n    time.sleep(10**6)",
    "child returns": "if os.environ.setdefault('FORKER', str(os.getpid())) == str(os.getpid()):\n    os.fork()",
    "child raises": "if not os.fork():\n    raise ValueError('in the child')",
    "child calls sys.exit": "if not os.fork():\n    sys.exit(0)",
    "daemon": ("if not os.fork():\n    os.setsid()\n    if not os.fork():\n        time.sleep(10**6)\n    os._exit(0)"),
    "child kills its parent's group": "if not os.fork():\n    time.sleep(0.2)\n    os._exit(0)",
    "deletes its source": "os.unlink(__file__) if os.path.exists(__file__) else None",
    "rewrites its source": "open(__file__, 'w').write('# nothing\\n' * 3)",
    "rewrites pyproject.toml": "open('pyproject.toml', 'w').write('[tool')",
}
# acts that change what attnshape itself uses: it has to cope or to give up, but not to break
_PATCHES = {
    "torch.randn": "torch.randn = None",
    "torch.empty": "torch.empty = never",
    "torch.Tensor.shape": "torch.Tensor.shape = property(never)",
    "torch.Tensor repr": "torch.Tensor.__repr__ = never",
    "len": "builtins.len = None",
    "isinstance": "builtins.isinstance = lambda *a: True",
    "print": "builtins.print = never",
    "open": "builtins.open = never",
    "import": "builtins.__import__ = never",
    "json.dumps": "json.dumps = None",
    "os.fork": "os.fork = None",
    "os._exit": "os._exit = never",
    "os.write": "os.write = never",
    "os.kill": "os.kill = os.killpg = never",
    "os.waitpid": "os.waitpid = never",
    "time.monotonic": "time.monotonic = time.time = never",
    "signal.signal": "signal.signal = signal.setitimer = never",
    "Thread": "threading.Thread = never",
    "sys.exit": "sys.exit = never",
    "sys.modules": "for name in [n for n in sys.modules if n.startswith('attnshape')]:\n    del sys.modules[name]",
    "attnshape.errors": "import attnshape.errors\nattnshape.errors.AttnshapeError.__init__ = never",
    "attnshape.__main__": "import attnshape.cli.output\nattnshape.cli.output.write = never",
    "closes descriptor 1": "with contextlib.suppress(OSError):\n    os.close(1)",
    "closes descriptor 2": "with contextlib.suppress(OSError):\n    os.close(2)",
    "closes descriptors 0 to 2": "os.closerange(0, 3)",
    "closes all descriptors": "os.closerange(0, 256)",
    "closes all above 2": "os.closerange(3, 256)",
    "writes to all descriptors": (
        "for number in range(3, 100):\n    with contextlib.suppress(OSError):\n"
        "        os.set_blocking(number, False)\n        os.write(number, b'\\0\\xffjunk{\\n')"
    ),
    "no descriptors left": "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))",
    "no files": "signal.signal(signal.SIGXFSZ, signal.SIG_DFL)\nresource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))",
    "one second": "resource.setrlimit(resource.RLIMIT_CPU, (1, 1))",
    "no memory left": "resource.setrlimit(resource.RLIMIT_DATA, (1 << 20, 1 << 20))",
    "no stack": "resource.setrlimit(resource.RLIMIT_STACK, (1 << 14, 1 << 14))",
    "kills every descendant": "subprocess.run(['sh', '-c', 'kill -9 0'])",
    "default dtype": "torch.set_default_dtype(torch.float64)",
    "default device": "torch.set_default_device('meta')",
}
_OBJECTS = {
    "__str__": "def __str__(self): raise Own('str')",
    "__repr__": "def __repr__(self): raise Own('repr')",
    "markup in __repr__": "def __repr__(self): return '\\x1b[31m[red]|`<b>\\n'",
    "__getattr__": "def __getattr__(self, name): raise Own(name)",
    "__getattr__ of anything": "def __getattr__(self, name): return self",
    "__getattribute__": "def __getattribute__(self, name): raise ValueError(name)",
    "__eq__": "def __eq__(self, other): raise Own('eq')\n__hash__ = None",
    "__hash__": "def __hash__(self): raise Own('hash')",
    "__len__": "def __len__(self): return 10**12",
    "negative __len__": "def __len__(self): return -1",
    "__bool__": "def __bool__(self): raise Own('bool')",
    "__class__": "__class__ = torch.Tensor",
    "raising __class__": "__class__ = property(never)",
    "endless __iter__": "def __iter__(self):\n    while True:\n        yield self",
    "__iter__": "def __iter__(self): raise Own('iter')",
    "__call__": "def __call__(self, *a, **k): return self",
    "__dict__": "__dict__ = property(never)",
    "__slots__": "__slots__ = ('missing',)",
    "__deepcopy__": "def __deepcopy__(self, memo): raise Own('copy')\n__copy__ = __reduce_ex__ = __deepcopy__",
    "__torch_function__": "@classmethod\ndef __torch_function__(cls, *a, **k): raise Own('torch')",
    "__index__": "def __index__(self): raise Own('index')",
    "__format__": "def __format__(self, spec): raise Own('format')",
}
_FORWARD = ("forward", "import", "constructor", "second run", "small sizes")
_LATER = ("thread", "destructor", "exit handler")
_CANNOT, _ANY = frozenset({2}), frozenset({0, 1, 2})


@dataclass(frozen=True)
class Hostile:
    """A hostile act at some moment, under one verb."""

    act: str
    body: str
    moment: str
    verb: str
    statuses: frozenset[int]
    hangs: bool = False
    prints_errors: bool = False
    removes: tuple[str, ...] = ()
    """The files of the project that the act itself changes."""
    saves: bool = False
    """Whether the result is written to a file."""

    @property
    def words(self) -> tuple[str, ...]:
        target = ("code.py:case",) if self.moment in ("argument", "result") else (
            "code.py:Target", "--init", "D", "--input", "x: B L D",
        )  # fmt: skip
        words = (self.verb, *target, "--batch", "4", "--length", "3", "--d-model", "4")
        if self.verb == "trace" or self.verb == "check":
            words = (*words, "--format", "json")
        else:
            words = (*words, "--style", "comment")
        if self.limited:
            words = (*words, "--time-limit", str(LIMIT))
        return (*words, "--output", "out") if self.saves else words

    @property
    def limited(self) -> bool:
        """Whether the verb has a time limit."""
        verb = {"trace": trace.trace, "check": check.check, "annotate": annotate}[self.verb]
        return "time_limit" in inspect.signature(verb).parameters

    @property
    def source(self) -> str:
        body = textwrap.indent(self.body, "    ")
        if self.moment in ("argument", "result"):
            hostile = "class Hostile:\n" + body
            rest = _TARGET.format(import_="", constructor="pass", forward="pass")
            return _PREAMBLE + hostile + rest + _CASE.format(given="Hostile()" if self.moment == "argument" else "None")
        calls = {"import_": "", "constructor": "pass", "forward": "pass"}
        calls |= _CALLS[self.moment]
        return f"{_PREAMBLE}def act():\n{body}\n{_TARGET.format(**calls)}"


_TARGET = """
runs = 0
{import_}

class Target(nn.Module):
    def __init__(self, D):
        super().__init__()
        self.linear = nn.Linear(D, D)
        {constructor}

    def forward(self, x, other=None):
        global runs
        runs += 1
        y = self.linear(x)
        {forward}
        scores = y @ y.mT
        weights = scores.softmax(-1)
        context = weights @ y
        return context
"""
_CASE = """
class Returns(Target):
    def forward(self, x, other=None):
        return super().forward(x), (Hostile() if other is None else other)

def case(B, L, D):
    return Returns(D), (torch.ones(B, L, D), {given})
"""
_EXPRESSIONS = ("linear(x)", "y @ y.mT", "softmax", "weights @ y")
_CALLS = {
    "import": {"import_": "act()"},
    "constructor": {"constructor": "act()"},
    "forward": {"forward": "act()"},
    "second run": {"forward": "runs < 2 or act()"},
    "small sizes": {"forward": "x.shape[0] == 4 or act()"},
    "thread": {"forward": "thread = threading.Thread(target=act, daemon=True); thread.start(); thread.join(0.5)"},
    "destructor": {
        "import_": "class Deleted:\n    def __del__(self):\n        act()",
        "forward": "Deleted()",
    },
    "exit handler": {"forward": "runs > 1 or atexit.register(act)"},
}
_PRINTING = ("child raises", "child calls sys.exit", "exit handler that raises SystemExit")
"""Acts for which Python itself prints a traceback."""
_SLOW = ("busy thread",)
"""Acts that slow everything down, so that the time limit may be reached."""
_OWN_CHANGES = {
    "deletes its source": ("code.py",),
    "rewrites its source": ("code.py",),
    "rewrites pyproject.toml": ("pyproject.toml",),
}
PYPROJECT = b'[project]\nname = "hostile"\n'


def table() -> list[Hostile]:
    """Return every act at each of its moments, in an order in which neighbours differ."""
    rows = list(_rows())
    random.Random(7).shuffle(rows)
    return rows


def _rows() -> Iterator[Hostile]:
    yield from _with_moments(
        _ENDS, {**dict.fromkeys(_FORWARD[:3], _CANNOT), **dict.fromkeys((*_FORWARD[3:], *_LATER), _ANY)}
    )
    raised = {"forward": frozenset({1}), "import": _CANNOT, "constructor": _CANNOT, "small sizes": _ANY}
    yield from _with_moments(_RAISES, raised | dict.fromkeys(_LATER, _ANY), prints_errors=_LATER)
    hanging = {
        **dict.fromkeys(("forward", "import", "constructor"), _CANNOT),
        "small sizes": _ANY,
        "exit handler": _ANY,
    }
    yield from _with_moments(_HANGS, hanging, hangs=True)
    yield from _with_moments(
        _HARMLESS, dict.fromkeys(("forward", "import", "constructor", "exit handler"), frozenset({0}))
    )
    yield from _with_moments(_PATCHES, dict.fromkeys(("forward", "import", "thread"), _ANY))
    yield from _with_moments(_OBJECTS, dict.fromkeys(("argument", "result"), _ANY))


def _with_moments(
    acts: Mapping[str, str],
    moments: Mapping[str, frozenset[int]],
    hangs: bool = False,
    prints_errors: Sequence[str] = (),
) -> Iterator[Hostile]:
    for number, (act, body) in enumerate(acts.items()):
        for place, (moment, statuses) in enumerate(moments.items()):
            verb = ("trace", "check", "trace", "trace", "annotate", "trace", "check")[(number * 5 + place) % 7]
            # an interrupted report is incomplete, or has nothing to report
            expected = statuses | {0, 2} if verb != "trace" and statuses <= {0, 1} else statuses
            expected = expected | {2} if act in _SLOW else expected
            yield Hostile(
                act, body, moment, verb, expected, hangs,
                moment == "thread" or moment in prints_errors or act in _PRINTING,
                _OWN_CHANGES.get(act, ()), saves=(number + place) % 3 == 0,
            )  # fmt: skip


def hostile_targets(harness: Harness) -> SearchStrategy[Hostile]:
    """Return a strategy for rows of the table."""
    return st.sampled_from(table())


def attempt(case: Hostile, harness: Harness) -> Verdict:
    """Run a verb on a hostile target."""
    verdict = Verdict(valid=case.statuses != _CANNOT)
    files = {"code.py": case.source.encode(), "pyproject.toml": PYPROJECT}
    saved: list[str] = []

    def look(outcome: Outcome, folder: Path) -> None:
        if (folder / "out").exists():
            saved.append((folder / "out").read_bytes().decode(errors="replace"))

    command = Command(words=case.words, seconds=_PATIENCE, limits={"DATA": 2 << 30})
    outcome = run_in(
        harness, files, command, verdict, [*case.removes, "out"], sorted(case.statuses), look, case.prints_errors
    )  # fmt: skip
    if outcome.timed_out and case.hangs and not case.limited:
        verdict.problems.clear()
        verdict.skipped = f"{case.verb} has no --time-limit yet"
        return verdict
    if outcome.timed_out:
        return verdict
    if case.limited and outcome.seconds > LIMIT + SLACK:
        verdict.problems.append(f"took {outcome.seconds:.1f} s with --time-limit {LIMIT:g}")
    text = saved[0] if saved else "" if case.saves else outcome.out
    if outcome.status == 2 and not (case.verb == "check" and text):
        _judge_refusal(case.act, outcome, text, verdict)
    elif outcome.status in (0, 1, 2):
        checked(verdict, "the result", lambda: _assert_result(case, outcome.status, text))
    return verdict


def _judge_refusal(act: str, outcome: Outcome, text: str, verdict: Verdict) -> None:
    errors = [line for line in outcome.err.splitlines() if line.startswith("error: ")]
    if len(errors) != 1:
        verdict.problems.append(f"{len(errors)} error lines: {outcome.err[-500:]!r}")
    if text and act != "writes to all descriptors":
        verdict.problems.append(f"output with an error: {text[:300]!r}")


def _assert_result(case: Hostile, status: int, text: str) -> None:
    if case.verb == "annotate":
        assert status == 0
        assert text.startswith("--- a/code.py") or not text, text[:200]
        return
    value = json.loads(text)
    if case.verb == "check":
        assert value["schema"].startswith("attnshape/report"), text[:200]
        return
    assert_drawn("json", text, 100)
    assert (value["failure"] is not None) == (status == 1), value["failure"]
    if status == 0 and "code.py" not in case.removes:
        expressions = iter(step["expression"] for step in value["steps"])
        for wanted in _EXPRESSIONS:
            assert any(wanted in expression for expression in expressions), f"no step {wanted}"


def describe(case: Hostile) -> str:
    """Return the act and its moment, the command, and the act's source."""
    return (
        f"{case.act!r} in {case.moment}: {shlex.join(('attnshape', *case.words))}\n{textwrap.indent(case.body, '  > ')}"
    )


FAMILY = Family(
    "hostile-targets", hostile_targets, attempt, describe, fixed_cases=18, long_cases=len(table()), table=table
)
