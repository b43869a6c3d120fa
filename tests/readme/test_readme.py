"""Every command in the README prints the output shown there, in a terminal of 100 columns."""

import fcntl
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from tests.goldens import is_updating
from tests.terminal import read_all

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
BLOCK = re.compile(r"```console\n\$ (?P<command>.*?)\n(?P<output>.*?)```", re.DOTALL)


def run_in_terminal(command: str) -> str:
    """Return the output of a command in a terminal of 100 columns, with this environment's attnshape."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    # a dumb terminal shows no progress line, which would depend on the machine's load
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "dumb", "PYTHONPATH": str(ROOT)}
    environment.pop("COLUMNS", None)
    for cache in ROOT.glob("examples/**/.attnshape_cache"):  # what is in it changes the output
        shutil.rmtree(cache, ignore_errors=True)
    here = command.replace("attnshape ", f"{shlex.quote(sys.executable)} -m attnshape ", 1)
    process = subprocess.Popen(here, shell=True, cwd=ROOT, stdout=slave, stderr=slave, stdin=slave, env=environment)
    os.close(slave)
    printed = read_all(master)
    process.wait()
    return printed


BLOCKS = list(BLOCK.finditer(README.read_text()))


@pytest.mark.parametrize("block", BLOCKS, ids=[block["command"][:60] for block in BLOCKS])
def test_command_output_matches_the_readme(block: re.Match[str]) -> None:
    printed = run_in_terminal(block["command"])
    if is_updating():
        text = README.read_text()
        new = f"```console\n$ {block['command']}\n{printed}```"
        old = rf"```console\n\$ {re.escape(block['command'])}\n.*?```"
        README.write_text(re.sub(old, lambda _: new, text, flags=re.DOTALL))
        return
    assert printed == block["output"]


def test_readme_has_commands_for_each_use() -> None:
    assert len(BLOCKS) >= 7
    assert "Traceback" not in README.read_text()
