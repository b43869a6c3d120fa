"""Replaces this process by a program, and notices when that program has ended, however it did."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn


def replace_process(command: Sequence[str], environment: Mapping[str, str]) -> NoReturn:
    """Run a command in place of this process; where that can't be, run it as a child, and exit as it does."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    if sys.platform == "win32":  # there is no exec that keeps the process
        sys.exit(subprocess.run(command, env=dict(environment)).returncode)
    os.execve(command[0], list(command), dict(environment))


def start_sentinel(then: Callable[[], None]) -> int | None:
    """Start a process that waits for the end of this one and then calls a function; None where there is no fork.

    It is no child of this process, and in a session of its own, which no signal of the terminal reaches.

    Returns:
        The end of a pipe that this process, or the program that replaces it, holds open until its end.
    """
    if not hasattr(os, "fork"):
        return None
    waiting, held = os.pipe()
    child = os.fork()
    if not child:
        try:
            if not os.fork():
                os.close(held)
                os.setsid()
                nothing = os.open(os.devnull, os.O_RDWR)
                os.dup2(nothing, 0)
                os.dup2(nothing, 1)
                os.read(waiting, 1)  # until every holder of the other end has ended
                then()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    os.close(waiting)
    os.set_inheritable(held, True)
    return held


def after_fork_in_child(call: Callable[[], None]) -> None:
    """Have a function called in each process that this one forks, where there is fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=call)
