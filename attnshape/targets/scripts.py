"""Takes the definitions of a script whose own code stops for want of something outside of it, or takes long.

A script may read data or arguments as it starts, above or between its classes. Where a file isn't there, what the
classes need of it fails with the name that isn't defined; the others can be used. A script that trains is stopped.
"""

from __future__ import annotations

import ast
import contextlib
import re
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from weakref import WeakKeyDictionary

from attnshape.errors import exception_message, exception_text
from attnshape.runtime.files import display_path
from attnshape.runtime.statements import Allowed
from attnshape.runtime.time_limit import TooLong
from attnshape.runtime.worker import seconds_until_limit
from attnshape.targets.missing import NotInstalledError

_NEEDS_CUDA = re.compile(r"not compiled with CUDA|Found no NVIDIA driver|No CUDA GPUs are available")
_DEFINITIONS = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Import, ast.ImportFrom)
_CONSTANT = (ast.Constant, ast.Name, ast.BinOp, ast.UnaryOp, ast.Tuple, ast.List, ast.Dict)
_PARTS = (*_CONSTANT, ast.operator, ast.unaryop, ast.expr_context)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_LOOP_SECONDS = 2.0
"""How long a loop may run as a script is imported: most that run longer train, or fetch data."""
_STATEMENT_SECONDS = 10.0
_OF_TIME_LIMIT = 1 / 6
"""Which part of the time limit the slowest statement may take, and a loop a fifth of that."""


@dataclass(frozen=True)
class Stop:
    """Where a script's own code stopped, and why."""

    place: str
    """The file and the line, as they are displayed: `train.py:12`."""
    why: str
    how: str = "fails"
    """What the statement does, or what happened to it."""


_stops: dict[str, Stop] = {}
"""The scripts of which only the definitions were taken from some line on, by their files."""


_constants_of_main: WeakKeyDictionary[ModuleType, tuple[str, ...]] = WeakKeyDictionary()
"""The constants that scripts define for their functions only where they run as such."""


def stop_of(module: ModuleType) -> Stop | None:
    """Return where a module's own code stopped, None if it ran to its end."""
    return _stops.get(str(getattr(module, "__file__", None)))


def needs_cuda(error: BaseException) -> bool:
    """Return whether something failed because torch finds no CUDA.

    >>> needs_cuda(RuntimeError("Found no NVIDIA driver on your system."))
    True
    """
    return _NEEDS_CUDA.search(exception_text(error)) is not None


def seconds_allowed(path: Path) -> Allowed:
    """Return a function that says where the statement on a line of a script begins, and how long it may take."""
    longest = min(_STATEMENT_SECONDS, _OF_TIME_LIMIT * seconds_until_limit())
    statements: list[ast.stmt] = []

    def allowed(line: int) -> tuple[int, float]:
        if not statements:
            statements.extend(node for node in ast.walk(ast.parse(path.read_bytes())) if isinstance(node, ast.stmt))
        around = [one for one in statements if one.lineno <= line <= (one.end_lineno or one.lineno)]
        if loops := [one.lineno for one in around if isinstance(one, _LOOPS)]:
            return min(loops), longest * _LOOP_SECONDS / _STATEMENT_SECONDS
        return max((one.lineno for one in around), default=line), longest

    return allowed


def define_the_rest(module: ModuleType, path: Path, error: BaseException) -> bool:
    """Add to a module what its file defines after the statement that failed: functions, classes, imports, constants.

    Args:
        module: The module, with what was defined until then.
        path: Its file.
        error: Why the statement failed.

    Returns:
        Whether the file has functions or classes, and it failed for want of something outside of the code: a file, an
        argument, a package, CUDA, or time. Otherwise, and where the code itself raises the exception, the module stays
        as it is.

    Raises:
        ImportError: One of the imports fails.
    """
    lines = [one.lineno or 0 for one in traceback.extract_tb(error.__traceback__) if Path(one.filename) == path]
    is_outside = isinstance(error, OSError | SystemExit | NotInstalledError | TooLong) or needs_cuda(error)
    if not is_outside or not lines:
        return False
    statements = ast.parse(path.read_bytes()).body
    places = [place for place, one in enumerate(statements) if one.lineno <= lines[0] <= (one.end_lineno or one.lineno)]
    if not places or _is_deliberate(statements[places[0]], lines[0]):
        return False
    if not any(isinstance(statement, _DEFINITIONS[:3]) for statement in statements):
        return False
    for statement in filter(_only_defines, statements[places[0] + 1 :]):
        try:
            exec(compile(ast.Module([statement], []), str(path), "exec"), vars(module))
        except ImportError:
            raise
        except Exception:  # noqa: BLE001 - it needs what the failed statement would have defined
            continue
    place = f"{display_path(str(path))}:{lines[0]}"
    if isinstance(error, TooLong):
        _stops[str(path)] = Stop(place, "it took too long", "was stopped")
    else:
        why = f"{type(error).__name__}: {exception_message(error)}".removesuffix(": ")
        _stops[str(path)] = Stop(place, why)
    return True


def define_constants_of_main(module: ModuleType, path: Path) -> None:
    """Add to a module the constants under `if __name__ == "__main__":` that its functions read as globals.

    Nothing else of that block runs, and what the module has stays as it is.
    """
    if module in _constants_of_main:
        return
    _constants_of_main[module] = ()
    try:
        statements = ast.parse(path.read_bytes()).body
    except (OSError, SyntaxError, ValueError):
        return
    main = [inner for one in statements for inner in _main_block(one)]
    assigned = {
        target.id
        for one in main
        if isinstance(one, ast.Assign)
        for target in one.targets
        if isinstance(target, ast.Name) and not hasattr(module, target.id)
    }
    wanted = assigned & {name for one in statements if isinstance(one, _DEFINITIONS[:3]) for name in _globals_read(one)}
    if not wanted:
        return
    names = dict(vars(module))
    for one in (one for one in main if isinstance(one, ast.Assign) and _only_defines(one)):
        with contextlib.suppress(Exception):  # it needs what another statement would have defined
            exec(compile(ast.Module([one], []), str(path), "exec"), names)
    found = sorted(name for name in wanted if name in names)
    vars(module).update({name: names[name] for name in found})
    _constants_of_main[module] = tuple(found)


def constants_of_main(module: ModuleType) -> tuple[str, ...]:
    """Return the constants that a module got from its `if __name__ == "__main__":`."""
    return _constants_of_main.get(module, ())


def _main_block(statement: ast.stmt) -> list[ast.stmt]:
    """Return the statements under `if __name__ == "__main__":`, none of another statement."""
    match statement:
        case ast.If(test=ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()]), body=body):
            return body
    return []


def _globals_read(definition: ast.stmt) -> set[str]:
    """Return the names that a function or the methods of a class read, and don't bind."""
    found: set[str] = set()
    for one in ast.walk(definition):
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = [node for node in ast.walk(one) if isinstance(node, ast.Name)]
            bound = {node.id for node in inner if not isinstance(node.ctx, ast.Load)}
            bound |= {argument.arg for argument in ast.walk(one.args) if isinstance(argument, ast.arg)}
            found |= {node.id for node in inner} - bound
    return found


def _is_deliberate(statement: ast.stmt, line: int) -> bool:
    """Return whether a line of a statement raises an exception itself, or whether the statement is a definition."""
    inner = (node for node in ast.walk(statement) if isinstance(node, ast.Raise | ast.Assert))
    return isinstance(statement, _DEFINITIONS) or any(node.lineno <= line <= (node.end_lineno or 0) for node in inner)


def _only_defines(statement: ast.stmt) -> bool:
    """Return whether a statement defines something without calling anything: a class, or `width = 4 * heads`."""
    if isinstance(statement, ast.Assign) and all(isinstance(target, ast.Name) for target in statement.targets):
        return all(isinstance(node, _PARTS) for node in ast.walk(statement.value))
    return isinstance(statement, _DEFINITIONS)
