"""Imports the file or module that a target names, and keeps the modules of several targets apart."""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import sys
import sysconfig
import traceback
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from attnshape.errors import AttnshapeError, format_exception, most_similar
from attnshape.runtime.files import display_path
from attnshape.runtime.signals import reraise_interruption

_WITHOUT_PARENT = "no known parent package"
_MOST_LEVELS = 5
"""How many folders around a file are searched for a module that it imports."""


def import_target(where: str) -> ModuleType:
    """Import `path/to/file.py` or `package.module`. Raises AttnshapeError if it isn't there or doesn't import."""
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
            hint = f"name a file in it: {path / 'model.py'}:Name"
            raise AttnshapeError(f"{where} is a folder, expected a Python file", hint)
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
        try:
            return _guarded_import(name, where)
        except AttnshapeError as failure:
            if not _add_root_of_missing(failure.__cause__, path):
                raise
            return _import_file(where)
    if loaded is not None or path.stem in sys.stdlib_module_names:
        name = f"attnshape_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise AttnshapeError(f"{where} can't be imported as Python", "name a file that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        reraise_interruption(error)
        sys.modules.pop(name, None)
        if _add_root_of_missing(error, path):
            return _import_file(where)
        if isinstance(error, ImportError) and _WITHOUT_PARENT in str(error):
            return _guarded_import(f"{_package_of(path.parent)}.{path.stem}", where)
        raise _import_failure(where, error) from error
    return module


def _package_of(folder: Path) -> str:
    """Make a folder without `__init__.py` a package, for files in it that import each other relatively."""
    name = f"attnshape_package_{zlib.crc32(bytes(folder)):x}"
    package = ModuleType(name)
    package.__path__ = [str(folder)]
    sys.modules[name] = package
    return name


def _add_root_of_missing(error: BaseException | None, path: Path) -> bool:
    """Make the folder importable that has the module which a file missed, as where scripts of the project run.

    Return whether that is one of the folders around the file, and wasn't importable before.
    """
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if not missing:
        return False
    top = missing.partition(".")[0]
    around = list(path.parents)[:_MOST_LEVELS]
    root = next((one for one in around if (one / top).is_dir() or (one / f"{top}.py").is_file()), None)
    return root is not None and _append_to_path(root)


def _append_to_path(folder: Path) -> bool:
    """Make a folder importable, after all others; return whether it wasn't yet."""
    if str(folder) in sys.path:
        return False
    sys.path.append(str(folder))
    importlib.invalidate_caches()
    return True


def _import_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        hint = "write path/to/file.py:Name or package.module:Name"
        raise AttnshapeError(f"{name!r} is neither a file nor a module", hint)
    module = _guarded_import(name, name)
    if getattr(module, "__file__", None) is None and Path(name).is_dir():
        raise AttnshapeError(f"{name} is a folder, expected a Python file", f"name a file in it: {name}/model.py:Name")
    return module


def _guarded_import(name: str, where: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            hint = "write path/to/file.py:Name, or install the package it is in"
            raise AttnshapeError(f"there is no module {error.name}", hint) from None
        raise _import_failure(where, error) from error
    except BaseException as error:
        reraise_interruption(error)
        raise _import_failure(where, error) from error


def _import_failure(where: str, error: BaseException) -> AttnshapeError:
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    install = (
        f"install the package that has it, for example: pip install {missing.partition('.')[0]}" if missing else ""
    )
    return AttnshapeError(
        f"{where} doesn't import: {format_exception(error)}{origin(error, where)}",
        install or "fix it so that `python -c 'import …'` accepts it",
    )


def origin(error: BaseException, where: str = "") -> str:
    """Return where an exception was raised, as `, at file:line`: the last line in the file `where`, else in any.

    Returns an empty string where no line outside this package raised it, as in a call with too few arguments.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f", at {display_path(error.filename)}:{error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen importlib")]
    inside = [f for f in frames if where and Path(f.filename).name == Path(where).name]
    ours = str(Path(__file__).resolve().parent)
    frames = [f for f in frames if not f.filename.startswith(ours)]
    candidates = inside or frames
    return f", at {display_path(candidates[-1].filename)}:{candidates[-1].lineno}" if candidates else ""


def _similar_file(path: Path) -> str:
    similar = None
    with contextlib.suppress(OSError):
        similar = most_similar(str(path), map(str, path.parent.glob("*.py")))
    return f"did you mean {similar}?" if similar else "check its path; it is taken from the current folder"


def defined_names(path: str) -> list[str]:
    """Return the classes and functions that a Python file defines, without importing it."""
    try:
        tree = ast.parse(Path(path).read_text())
    except (OSError, SyntaxError, ValueError):
        return []
    return [
        node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name[0] != "_"
    ]


class SiblingModules:
    """The modules beside each target's file, which no target from another folder gets to see.

    `a/model.py` and `b/model.py` may each import a `layers` of their own folder. Each gets its own, and none is run
    twice: the modules of a folder are set aside after a target, and are back for the next target of the same folder.
    """

    def __init__(self) -> None:
        self._set_aside: dict[Path, dict[str, ModuleType]] = {}

    @contextlib.contextmanager
    def of(self, target: str) -> Iterator[None]:
        """Make the modules beside a target importable; `target` is as the user typed it: `folder/model.py:Name`."""
        folder = _import_folder(target)
        before = set(sys.modules)
        sys.modules.update(self._set_aside.pop(folder, {}))
        try:
            yield
        finally:
            if folder not in map(_resolve, ("", *sys.path)):
                packages = {name: sys.modules.get(name.partition(".")[0]) for name in set(sys.modules) - before}
                siblings = [name for name, package in packages.items() if _folder_of(package) == folder]
                self._set_aside[folder] = {name: sys.modules.pop(name) for name in siblings}


@contextlib.contextmanager
def forget_imports() -> Iterator[None]:
    """Remove on exit the modules that were imported inside, except those of installed packages.

    Two versions of a project have modules of the same names; without this the second would get those of the first.
    """
    before = set(sys.modules)
    try:
        yield
    finally:
        folders = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
        torch_file = getattr(sys.modules.get("torch"), "__file__", None)
        folders += [Path(__file__).resolve().parents[1], *([_resolve(torch_file).parent] if torch_file else ())]
        for name in sys.modules.keys() - before:
            # a module whose import is interrupted is gone again
            module = sys.modules.get(name)
            file = getattr(module, "__file__", None)
            places = [file] if file else list(getattr(module, "__path__", ()))
            if places and not any(Path(place).is_relative_to(folder) for place in places for folder in folders):
                sys.modules.pop(name, None)


def _import_folder(target: str) -> Path:
    """Return the folder from which a target's file is imported: for a file in a package, the package's parent."""
    path = target.partition(":")[0].strip()
    folder = _resolve(path).parent if path.endswith(".py") or "/" in path else _resolve("")
    while (folder / "__init__.py").is_file():
        folder = folder.parent
    return folder


def _folder_of(module: ModuleType | None) -> Path | None:
    """Return the folder in which a module is found by its name; None if it comes from no file."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str):
        return None
    folder = _resolve(file).parent
    return folder.parent if hasattr(module, "__path__") else folder


def _resolve(entry: str) -> Path:
    try:
        return Path(entry).resolve()
    except (OSError, ValueError, RuntimeError):
        return Path(entry)
