"""Imports the file or module that a target names."""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from attnshape.ending import reraise_interruption
from attnshape.errors import AttnshapeError
from attnshape.paths import display_path


def import_target(where: str) -> ModuleType:
    """Import `path/to/file.py` or `package.module`. Raises AttnshapeError where it isn't there or doesn't import."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    return _import_file(where) if where.endswith(".py") or "/" in where else _import_module(where)


def definitions(module: ModuleType) -> list[str]:
    """Return the public classes and functions that the module itself defines."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == module.__name__
    ]


def public_names(module: ModuleType) -> list[str]:
    """Return the public classes and functions that the module has, imported ones too."""
    return [name for name, value in vars(module).items() if not name.startswith("_") and callable(value)]


def _import_file(where: str) -> ModuleType:
    path = Path(where)
    try:
        if path.is_dir():
            raise AttnshapeError(
                f"{where} is a folder, expected a Python file", f"name a file in it: {path / 'model.py'}:Name"
            )
        if not path.is_file():
            raise AttnshapeError(f"there is no file {where}", _similar_file(path))
    except (OSError, ValueError) as error:
        raise AttnshapeError(f"can't read {where[:80]!r}: {error}", "name a Python file: model.py:Name") from None
    path = path.resolve()
    names, root = [path.stem], path.parent
    while (root / "__init__.py").is_file():
        names.insert(0, root.name)
        root = root.parent
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    name = ".".join(names)
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    if len(names) > 1:
        return _guarded_import(name, where)
    if loaded is not None or path.stem in sys.stdlib_module_names:
        name = f"attnshape_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise AttnshapeError(f"{where} can't be imported as Python", "name a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:  # noqa: BLE001 - the file may raise anything
        reraise_interruption(error)
        sys.modules.pop(name, None)
        raise _import_failure(where, error) from None
    return module


def _import_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise AttnshapeError(
            f"{name!r} is neither a file nor a module", "write path/to/file.py:Name or package.module:Name"
        )
    module = _guarded_import(name, name)
    if getattr(module, "__file__", None) is None and Path(name).is_dir():
        raise AttnshapeError(f"{name} is a folder, expected a Python file", f"name a file in it: {name}/model.py:Name")
    return module


def _guarded_import(name: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise AttnshapeError(
                f"there is no module {error.name}", "write path/to/file.py:Name, or install the package it is in"
            ) from None
        raise _import_failure(where, error) from None
    except BaseException as error:  # noqa: BLE001 - the file may raise anything
        reraise_interruption(error)
        raise _import_failure(where, error) from None


def _import_failure(where: str, error: BaseException) -> AttnshapeError:
    return AttnshapeError(
        f"{where} doesn't import: {raised(error)}{origin(error, where)}",
        "mend it so that `python -c 'import …'` accepts it",
    )


def raised(error: BaseException) -> str:
    """Return what an exception is and says, on one line."""
    if isinstance(error, SystemExit):
        return f"SystemExit: {error.code}, by sys.exit({error.code!r})"
    return f"{type(error).__name__}: {reason(error)}"


def reason(error: BaseException) -> str:
    """Return an exception's own words on one line."""
    if isinstance(error, SyntaxError):
        return error.msg or "invalid syntax"
    if isinstance(error, KeyError):
        return repr(error.args[0]) if error.args else "missing key"
    return " ".join(str(error).split()) or "no message"


def origin(error: BaseException, where: str = "") -> str:
    """Return where an exception was raised, as `, at file:line`: the last place in the file that is meant, else of all.

    Nothing where no line outside this package raised it, as in a call with the wrong number of arguments.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f", at {display_path(error.filename)}:{error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen importlib")]
    inside = [f for f in frames if where and Path(f.filename).name == Path(where).name]
    ours = str(Path(__file__).resolve().parent)
    frames = [f for f in frames if not f.filename.startswith(ours)]
    candidates = inside or frames
    if not candidates:
        return ""
    return f", at {display_path(candidates[-1].filename)}:{candidates[-1].lineno}"


def _similar_file(path: Path) -> str:
    try:
        names = [str(found) for found in path.parent.glob("*.py")]
    except OSError:
        names = []
    close = difflib.get_close_matches(str(path), names, 1)
    return f"did you mean {close[0]}?" if close else "check its path; it is taken from the current folder"


def names_in(path: str) -> list[str]:
    """Return the classes and functions that a Python file defines, without importing it."""
    try:
        tree = ast.parse(Path(path).read_text())
    except (OSError, SyntaxError, ValueError):
        return []
    return [
        node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name[0] != "_"
    ]
