"""The contract of every command: exit statuses, output streams, and imports."""

from __future__ import annotations

import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer.main

from attnshape.cli.app import app
from attnshape.cli.help import EXAMPLES
from attnshape.dims.symbols import SYMBOLS
from attnshape.targets.builtin.registry import CATALOG, describe
from tests.cli.running import Attnshape
from tests.terminal import read_all

VERBS = [command.name or command.callback.__name__ for command in app.registered_commands if command.callback]
CASES = [f"{name}:{case.name}" for name in CATALOG for case in describe(name).cases]

NOISY = """
import ctypes
import os
import sys

kept = sys.stdout
libc = ctypes.CDLL(None)
print("noise while importing")


def add(x):
    print("noise from print")
    kept.write("noise from a kept stream\\n")
    os.write(1, b"noise from os.write\\n")
    os.system("echo noise from a process")
    return x + 1


def add_in_c(x):
    libc.puts(b"noise from puts")
    return x + 1


def add_around(x):
    sys.__stdout__.write("noise from the first stream\\n")
    return x + 1
"""

FAILING = """
def fail(x):
    y = x + 1
    return y @ y


def wrong(query, key):
    scores = query @ key.transpose(-2, -1)
    return scores
"""


def process(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONUNBUFFERED": ""}
    return subprocess.run(
        [sys.executable, "-m", "attnshape", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **{"env": environment, **options},  # type: ignore[call-overload]
    )


@pytest.fixture
def saved(attnshape: Attnshape, folder: Path) -> str:
    assert attnshape("trace --format json --output saved.json").status == 0
    return "saved.json"


# exit statuses


def test_successful_trace_is_status_0(attnshape: Attnshape):
    result = attnshape("trace average")
    assert (result.status, result.err) == (0, "")
    assert "average" in result.out


def test_failing_code_is_status_1(attnshape: Attnshape, folder: Path):
    (folder / "failing.py").write_text(FAILING)
    result = attnshape("trace failing.py:fail --input 'x: B L' --format json")
    assert (result.status, result.err) == (1, "")
    assert result.trace["complete"] is False
    assert result.trace["failure"]["source"]["line"] == 4
    assert [output["name"] for step in result.trace["steps"] for output in step["outputs"]] == ["y"]


def test_failed_expectation_is_status_1(attnshape: Attnshape, folder: Path):
    (folder / "failing.py").write_text(FAILING)
    line = "trace failing.py:wrong --input 'query: B Lq Dk' --input 'key: B Lk Dk' --expect"
    assert attnshape(f"{line} 'scores: B Lq Lk'").status == 0
    assert attnshape(f"{line} 'scores: B Lk Lq'").status == 1


def test_bad_input_is_status_2(attnshape: Attnshape):
    result = attnshape("trace --heads 0")
    assert (result.status, result.out) == (2, "")


def test_show_is_status_0_for_a_failed_trace(attnshape: Attnshape, folder: Path):
    (folder / "failing.py").write_text(FAILING)
    assert attnshape("trace failing.py:fail --input 'x: B L' --format json --output failed.json").status == 1
    result = attnshape("show failed.json")
    assert result.status == 0
    assert "failing.py:4" in result.out


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["trace", "average", "--format", "json"], 0),
        (["trace", "average", "--expect", "output: B L"], 1),
        (["trace", "averag"], 2),
    ],
)
def test_exit_status_of_the_process(arguments: list[str], status: int):
    result = process(*arguments)
    assert result.returncode == status, result.stderr
    assert bool(result.stdout) == (status != 2)
    assert bool(result.stderr) == (status == 2)


def test_no_command_prints_the_help_to_stderr(attnshape: Attnshape):
    result = attnshape(*())
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("Usage: attnshape")
    assert "error" not in result.err


def test_command_list_is_not_truncated(attnshape: Attnshape, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    _, commands = attnshape("--help").out.split("Commands:\n")
    lines = commands.partition("\n\n")[0].splitlines()
    assert len(lines) == len(VERBS)
    assert all(line.endswith(".") and "..." not in line for line in lines)


@pytest.mark.parametrize("columns", ["60", "80"])
def test_every_verb_has_a_whole_sentence_at_any_width(
    columns: str, attnshape: Attnshape, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("COLUMNS", columns)
    commands = attnshape("--help").out.partition("Commands:\n")[2].partition("\n\n")[0]
    assert "..." not in commands
    assert commands.count(".\n") + 1 == len(VERBS)


def test_options_are_in_groups(attnshape: Attnshape):
    for verb, groups in (("trace", ["Target", "Sizes", "Built-in mechanisms only", "Running", "Output"]),):
        headings = re.findall(r"^(\w.*):$", attnshape(f"{verb} --help").out, re.MULTILINE)
        assert headings == ["Arguments", *groups, "Options", "Examples"]
    check = attnshape("check --help").out
    assert check.index("Target:") < check.index("--init") < check.index("Sizes:") < check.index("--batch")
    assert check.index("Checking:") < check.index("--claim") < check.index("Output:") < check.index("--format")
    for verb in VERBS:
        # only the help itself has no group
        assert attnshape(f"{verb} --help").out.partition("\nOptions:\n")[2].count("\n  -") == 0, verb


@pytest.mark.parametrize("verb", ["attnshape", *VERBS])
def test_examples_of_the_help_are_valid(verb: str, attnshape: Attnshape):
    shown = attnshape("--help" if verb == "attnshape" else f"{verb} --help").out
    assert EXAMPLES[verb]
    for line in EXAMPLES[verb]:
        assert f"  {line}\n" in shown
        program, name, *words = shlex.split(line)
        assert program == "attnshape"
        assert verb in (name, "attnshape")
        command = typer.main.get_command(app).get_command(None, name)
        if "--help" not in words:
            command.make_context(name, words)


def test_optional_argument_has_one_pair_of_brackets(attnshape: Attnshape, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "100")
    named = {"trace": "TARGET", "explain": "TARGET", "check": "TARGET", "rule": "CODE", "catalog": "NAME"}
    for verb, name in named.items():
        more = "..." if verb in ("check", "catalog") else ""
        assert attnshape(f"{verb} --help").out.startswith(f"Usage: attnshape {verb} [OPTIONS] [{name}]{more}\n")


def test_help_and_version_go_to_stdout(attnshape: Attnshape):
    for line in ("--help", "-h", "trace --help", "explain --help", "show --help", "catalog -h", "glossary --help"):
        result = attnshape(line)
        assert (result.status, result.err) == (0, ""), line
        assert result.out.startswith("Usage: attnshape"), line
    result = attnshape("--version")
    assert re.fullmatch(r"attnshape \d+\.\d+\.\d+\n", result.out)


# output of the target


def test_printed_output_of_a_target_goes_to_stderr(attnshape: Attnshape, folder: Path):
    (folder / "noisy.py").write_text(NOISY)
    result = attnshape("trace noisy.py:add --input 'x: B L' --format json")
    assert result.status == 0
    assert "noise" not in result.out.replace("noisy.py", "")
    assert result.trace["target"] == "noisy.py:add"
    for source in ("while importing", "from print", "from os.write", "from a process"):
        assert f"noise {source}" in result.err


@pytest.mark.parametrize("name", ["add_in_c", "add_around"])
def test_buffered_output_of_a_target_goes_to_stderr(name: str, folder: Path):
    (folder / "noisy.py").write_text(NOISY)
    result = process("trace", f"noisy.py:{name}", "--input", "x: B L", "--format", "json")
    assert result.returncode == 0
    assert "noise from" in result.stderr
    assert "noise from" not in result.stdout


@pytest.mark.filterwarnings("ignore:careful")
def test_warnings_of_a_target_are_not_in_stdout(attnshape: Attnshape, folder: Path):
    (folder / "warns.py").write_text("import warnings\ndef f(x):\n    warnings.warn('careful')\n    return x + 1\n")
    result = attnshape("trace warns.py:f --input 'x: B L' --format json")
    assert result.status == 0
    assert result.trace["complete"] is True


# imports

FAST = [
    ["--help"],
    ["--version"],
    ["trace", "--help"],
    ["show", "--help"],
    ["glossary"],
    ["catalog"],
    ["catalog", "multi-head"],
    ["catalog", "nosuch"],
    ["show", "saved.json"],
    ["show", "saved.json", "--format", "table", "--explain", "--columns", "step,signature,strides"],
    ["show", "saved.json", "--format", "json"],
    ["show", "nosuch.json"],
    ["explain", "--help"],
    ["explain", "--format", "nosuch"],
    ["explain", "--format", "table"],
    ["explain", "--heads", "0"],
    ["explain", "nosuch.py:f", "--input", "x: B Dq"],
    ["targets", "--help"],
    ["run", "--help"],
    ["run"],
    ["run", "nosuch.py"],
    ["targets", "."],
    ["targets", "nosuch"],
    ["trace", "--nosuch"],
    ["trace", "--heads", "0"],
    ["trace", "--heads", "x"],
    ["trace", "--format", "nosuch"],
    ["trace", "--columns", "nosuch"],
    ["trace", "--cost", "--columns", "flops,nosuch"],
    ["trace", "--device", "nosuch"],
    ["trace", "--dtype", "nosuch"],
    ["trace", "--output", "nosuch/file"],
    ["trace", "--dim", "nosuch"],
    ["trace", "--dim", "C=nh*hs"],
    ["trace", "nosuch.py:f", "--input", "x: B Dq"],
    ["trace", "--expect", "output: B Dq"],
    ["check", "nosuch.py:f", "--claim", "scale=1/sqrt(Dq)"],
    ["check", "--claim", "window=9**9**9"],
    ["trace", "--with", "nosuch"],
    ["trace", "--dropout", "2"],
]

HEAVY = ("torch", "numpy", "jaxtyping", "beartype", "executing")


def test_commands_without_torch_do_not_import_it(saved: str, folder: Path):
    script = (
        "import sys\n"
        "from attnshape.cli.app import run\n"
        f"for arguments in {FAST!r}:\n"
        "    status = run(arguments)\n"
        f"    heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "    assert not heavy, (arguments, heavy)\n"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr[-500:]


@pytest.mark.parametrize("arguments", [["--help"], ["show", "saved.json"], ["glossary"]])
def test_process_does_not_import_torch(arguments: list[str], saved: str):
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "attnshape", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0
    imported = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "attnshape.cli.app" in imported
    assert not imported & set(HEAVY)


# flags


def trace_options() -> set[str]:
    command = typer.main.get_command(app).commands["trace"]  # type: ignore[attr-defined]
    return {flag for parameter in command.params for flag in parameter.opts}


def test_every_symbol_has_a_flag():
    assert {symbol.flag for symbol in SYMBOLS} <= trace_options()


def test_every_flag_sets_its_symbol(attnshape: Attnshape, folder: Path):
    (folder / "every.py").write_text(
        "import torch\n"
        "def every(B, H, Hkv, G, Lp, L, Lq, Lk, D, Dk, Dv, W):\n"
        "    return torch.add, (torch.zeros(B, H, Hkv, G, Lp, L), torch.ones(1))\n"
    )
    given = {"--batch": 3, "--heads": 10, "--kv-heads": 5, "--group": 2, "--past": 4, "--length": 6, "--queries": 7}
    given |= {"--keys": 8, "--d-model": 11, "--d-head": 12, "--d-value": 13, "--window": 9}
    words = [word for flag, size in given.items() for word in (flag, str(size))]
    result = attnshape("trace", "every.py:every", *words, "--format", "json")
    assert result.status == 0, result.err
    # the symbol that each flag sets
    expected = {"B": 3, "H": 10, "Hkv": 5, "G": 2, "Lp": 4, "L": 6, "Lq": 7, "Lk": 8, "D": 11, "Dk": 12, "Dv": 13}
    expected["W"] = 9
    assert {symbol: record["size"] for symbol, record in result.trace["sizes"].items()} == expected
    assert {record["from"] for record in result.trace["sizes"].values()} == {"given"}


@pytest.mark.parametrize("case", CASES)
def test_every_case_of_the_catalog_is_reachable(case: str, attnshape: Attnshape):
    heads = ["--heads", "1"] if case.startswith("multi-head-concat") else []  # a loop over heads takes its time
    result = attnshape("trace", case, *heads, "--format", "json")
    assert (result.status, result.err) == (0, "")
    assert result.trace["target"] == case
    assert result.trace["steps"]


def test_catalog_lists_every_mechanism_in_one_line(attnshape: Attnshape):
    lines = attnshape("catalog").out.splitlines()
    assert [line.split()[0] for line in lines] == list(CATALOG)
    assert all(len(line.split()) > 3 for line in lines)


@pytest.mark.parametrize("name", CATALOG)
def test_catalog_shows_formula_source_sizes_and_code(name: str, attnshape: Attnshape):
    result = attnshape("catalog", name)
    assert (result.status, result.err) == (0, "")
    for part in ("formula\n", "source\n", "cases\n", "code\n", "import torch", f"{name}:"):
        assert part in result.out
    flags = set(re.findall(r"--[a-z-]+", result.out.partition("\ncode\n")[0]))
    assert flags <= trace_options()


def test_glossary_has_every_symbol(attnshape: Attnshape):
    text = attnshape("glossary").out
    for symbol in SYMBOLS:
        assert f"`{symbol.name}`" in text
        assert symbol.flag in text


# files, pipes and terminals


def test_output_flag_writes_only_to_the_file(attnshape: Attnshape, folder: Path):
    direct = attnshape("trace average --format table")
    result = attnshape("trace average --format table --output table.txt")
    assert (result.status, result.out, result.err) == (0, "", "")
    written = (folder / "table.txt").read_text(encoding="utf-8")
    assert written.replace(" --output table.txt", "") == direct.out
    assert [path.name for path in folder.iterdir()] == ["table.txt"]


def test_output_follows_symbolic_links(attnshape: Attnshape, folder: Path):
    (folder / "real.md").write_text("old")
    (folder / "link.md").symlink_to("real.md")
    (folder / "new.md").symlink_to("later.md")
    for name in ("link.md", "new.md"):
        assert attnshape("trace", "average", "--output", name).status == 0
        assert (folder / name).is_symlink()
    assert (folder / "real.md").read_text(encoding="utf-8").startswith("`attnshape trace average")
    assert (folder / "later.md").read_text(encoding="utf-8").startswith("`attnshape trace average")


def test_error_leaves_the_output_file_unchanged(attnshape: Attnshape, folder: Path):
    (folder / "kept.md").write_text("kept")
    assert attnshape("trace average --match nosuch --output kept.md").status == 2
    assert (folder / "kept.md").read_text() == "kept"


def test_output_to_a_pipe(attnshape: Attnshape):
    result = attnshape("trace average --format json --output /dev/stdout")
    assert result.status == 0
    assert result.trace["target"] == "average"


@pytest.mark.parametrize("arguments", ["glossary", "catalog multi-head", "trace multi-head --format json"])
def test_closed_pipe_is_not_an_error(arguments: str, folder: Path):
    # `true` reads nothing, and the pipe is closed long before anything is written
    line = f"{sys.executable} -m attnshape {arguments} | true; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert (result.stdout, result.stderr) == ("0\n", "")


def test_piping_to_head_works(saved: str):
    line = f"{sys.executable} -m attnshape show {saved} --format json | head -1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert (result.stdout, result.stderr) == ("{\n0\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_is_an_error():
    line = f"{sys.executable} -m attnshape glossary > /dev/full"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert re.fullmatch(r"error: standard output .*\nhint: .*\n", result.stderr)


@pytest.mark.parametrize(("closed", "status"), [(">&-", 0), ("2>&-", 0), ("<&-", 0)])
def test_closed_streams_do_not_crash(closed: str, status: int, saved: str):
    line = f"{sys.executable} -m attnshape show {saved} {closed}"
    result = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == status
    assert "Traceback" not in result.stderr


def on_a_terminal(*arguments: str, **environment: str) -> str:
    """Return what a command writes to a terminal of 100 columns."""
    leader, follower = pty.openpty()
    clean = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    child = subprocess.Popen(
        [sys.executable, "-m", "attnshape", *arguments],
        stdout=follower,
        stderr=subprocess.DEVNULL,
        env={**clean, "TERM": "xterm-256color", "COLUMNS": "100", **environment},
    )
    os.close(follower)
    printed = read_all(leader)
    assert child.wait(60) == 0
    return printed


def test_terminal_gets_a_table_and_a_pipe_gets_markdown(saved: str, attnshape: Attnshape, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    colored, plain = on_a_terminal("show", saved), on_a_terminal("show", saved, NO_COLOR="1")
    table = attnshape("show", saved, "--format", "table").out
    assert "\x1b" not in plain
    assert plain == table
    # colour carries no information of its own
    assert "\x1b[" in colored
    assert re.sub(r"\x1b\[[0-9;]*m", "", colored) == plain
    assert attnshape("show", saved).out == attnshape("show", saved, "--format", "markdown").out != table


def test_sys_exit_in_a_target_is_a_failure(folder: Path, attnshape: Attnshape):
    (folder / "leaves.py").write_text("import sys\n\n\ndef leaves(x):\n    y = x + 1\n    sys.exit('enough')\n")
    result = attnshape("trace", "leaves.py:leaves", "--input", "x: B")
    assert result.status == 1
    assert "y = x + 1" in result.out
    assert "failed at leaves.py:6: SystemExit: enough" in result.out


LEAVING = """\
import atexit
import threading
import time


def note(name):
    open(name, "w").write("done")


def at_exit(x):
    atexit.register(note, "at_exit.out")
    return x + 1


def in_a_thread(x):
    threading.Thread(target=lambda: (time.sleep(0.5), note("in_a_thread.out"))).start()
    return x + 1
"""


@pytest.mark.parametrize("name", ["at_exit", "in_a_thread"])
def test_atexit_functions_and_threads_of_a_target_complete(name: str, folder: Path):
    (folder / "leaving.py").write_text(LEAVING)
    result = process("trace", f"leaving.py:{name}", "--input", "x: B")
    assert result.returncode == 0
    assert (folder / f"{name}.out").read_text() == "done"
