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
from collections.abc import Callable, Collection, Iterator
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from attnshape.errors import AttnshapeError, format_exception, most_similar
from attnshape.runtime.files import INSTALLED, display_path, installed_package
from attnshape.runtime.signals import reraise_interruption
from attnshape.runtime.statements import limit_statements
from attnshape.runtime.time_limit import TooLong
from attnshape.targets.missing import (
    OWN_PACKAGE,
    MissingPackages,
    how_to_install,
    install_hint,
    missing_package,
    not_installed,
)
from attnshape.targets.scripts import (
    constants_of_main,
    define_constants_of_main,
    define_the_rest,
    seconds_allowed,
    stop_of,
)

_WITHOUT_PARENT = "no known parent package"
_MOST_NAMES = 8
_MOST_LEVELS = 5
"""How many folders around a file are searched for a module that it imports."""


def import_target(where: str) -> ModuleType:
    """Import `path/to/file.py` or `package.module`. Raises AttnshapeError if it isn't there or doesn't import."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module = _imported(where)
    if _is_file(where):
        define_constants_of_main(module, _resolve(where))
    return module


def _imported(where: str) -> ModuleType:
    before = set(sys.modules)
    try:
        return _import_file(where) if _is_file(where) else _import_module(where)
    except AttnshapeError as failure:
        if not isinstance(failure.__cause__, ImportError) and not _is_of_its_package(failure.__cause__, where):
            raise
        _forget(before)
        return _import_in_part(where, failure)


def _is_of_its_package(error: BaseException | None, where: str) -> bool:
    """Return whether an import failed before it came to the file itself: in its package."""
    if not isinstance(error, Exception) or not _is_file(where) or len(_module_name(_resolve(where))[0]) == 1:
        return False
    frames = traceback.extract_tb(error.__traceback__)
    return not isinstance(error, SyntaxError) and all(_resolve(one.filename) != _resolve(where) for one in frames)


def _is_file(where: str) -> bool:
    return where.endswith(".py") or "/" in where


def _import_in_part(where: str, failure: AttnshapeError) -> ModuleType:
    """Import a target after a failure with placeholders for packages that aren't installed, then alone too.

    What is imported alone is a file of a package: the package's `__init__.py` doesn't run.

    Raises:
        AttnshapeError: It doesn't import in either way. That is the original failure, unless the package failed before
            it came to the file.
    """
    attempts = [_import_file, _import_alone] if _is_file(where) else [_import_module]
    missing: dict[str, None] = {}
    last = failure
    for attempt in attempts:
        before = set(sys.modules)
        packages = MissingPackages(lambda name: _find_around(name, Path(where)))
        try:
            with packages:
                module = _with_names(packages, attempt, where)
        except AttnshapeError as error:
            _forget(before)
            missing |= dict.fromkeys(packages.found)
            last = error
            continue
        packages.keep()
        return module
    if not missing:
        raise last if _is_of_its_package(failure.__cause__, where) else failure
    raise AttnshapeError(failure.message, how_to_install(missing)) from failure.__cause__


def _with_names(packages: MissingPackages, attempt: Callable[[str], ModuleType], where: str) -> ModuleType:
    """Import, again with a placeholder for each name that another release of an installed package has."""
    before = set(sys.modules)
    while True:
        try:
            return attempt(where)
        except AttnshapeError as failure:
            if not packages.add_name(failure.__cause__):
                raise
            _forget(before)


class _PackageWithoutCode(ModuleType):
    """A package whose `__init__.py` didn't run."""


def _import_alone(where: str) -> ModuleType:
    """Import a file of a package without running the package's `__init__.py`, nor those of the packages it is in."""
    path = Path(where).resolve()
    names, root = _module_name(path)
    for place in range(1, len(names)):
        package = _PackageWithoutCode(".".join(names[:place]))
        package.__path__ = [str(root.joinpath(*names[:place]))]
        sys.modules.setdefault(package.__name__, package)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    return _guarded_import(".".join(names), where)


def _module_name(path: Path) -> tuple[list[str], Path]:
    """Return the parts of the name under which a file is imported, and the folder in which its first part is."""
    names, root = [path.stem], path.parent
    # a package may leave a file of this name beside itself
    while (root / "__init__.py").is_file() and root.name not in INSTALLED:
        names.insert(0, root.name)
        root = root.parent
    return names, root


def _find_around(name: str, path: Path) -> ModuleSpec | None:
    """Return a module in one of the folders around a file, which is made importable.

    A submodule is there where an installed package hides the project's own of the same name.
    """
    *packages, _ = name.split(".")
    if packages:
        folders = [root.joinpath(*packages) for root in list(path.resolve().parents)[:_MOST_LEVELS]]
        specs = (PathFinder.find_spec(name, [str(folder)]) for folder in folders if folder.is_dir())
        return next((spec for spec in specs if spec is not None), None)
    root = _root_of(name, path.resolve())
    return PathFinder.find_spec(name) if root is not None and _append_to_path(root) else None


def notes_on(module: ModuleType) -> tuple[str, ...]:
    """Return notes on what a module was imported without: packages that aren't installed, its package's own code."""
    file = getattr(module, "__file__", None)
    names = not_installed(_import_folder(file)) if isinstance(file, str) else []
    how = "found" if any("." in name for name in names) else "installed"
    notes = [f"not {how}, and not needed by what ran: {', '.join(names)}"] if names else []
    if (stop := stop_of(module)) is not None:
        notes.append(f"{stop.place} {stop.how}, after which only definitions were taken from the file: {stop.why}")
    if constants := constants_of_main(module):
        reads = ", ".join(constants)
        notes.append(f"taken from `if __name__ == '__main__':`, since the code reads them: {reads}")
    package = module.__name__.rpartition(".")[0]
    if isinstance(sys.modules.get(package), _PackageWithoutCode):
        notes.append(f"the package {package} itself doesn't import, so that only its file was imported")
    return tuple(notes)


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
    names, root = _module_name(path)
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    name = ".".join(names)
    loaded = sys.modules.get(name)
    if loaded is not None and getattr(loaded, "__file__", None) == str(path):
        return loaded
    if len(names) > 1:
        try:
            return limit_statements(str(path), seconds_allowed(path), lambda: _guarded_import(name, where))
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
    sys.modules[name], execute = module, spec.loader.exec_module
    try:
        limit_statements(str(path), seconds_allowed(path), lambda: execute(module))
    except BaseException as error:  # noqa: BLE001 - the file may raise anything, which is reported
        reraise_interruption(error)
        sys.modules.pop(name, None)
        if _add_root_of_missing(error, path):
            return _import_file(where)
        if isinstance(error, ImportError) and _WITHOUT_PARENT in str(error):
            return _guarded_import(f"{_package_of(path.parent)}.{path.stem}", where)
        return _with_definitions(module, where, error)
    return module


def _with_definitions(module: ModuleType, where: str, error: BaseException) -> ModuleType:
    """Return the module of a file that failed, with its definitions. Raises AttnshapeError if that isn't enough."""
    try:
        has_them = define_the_rest(module, Path(where).resolve(), error)
    except ImportError as later:
        raise _import_failure(where, later) from later
    if not has_them:
        raise _import_failure(where, error) from error
    sys.modules[module.__name__] = module
    return module


def _package_of(folder: Path) -> str:
    """Make a folder without `__init__.py` a package, for files in it that import each other relatively."""
    name = f"{OWN_PACKAGE}_{zlib.crc32(bytes(folder)):x}"
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
    root = _root_of(missing.partition(".")[0], path)
    return root is not None and _append_to_path(root)


def _root_of(name: str, path: Path) -> Path | None:
    """Return the folder around a file that has a module of this name."""
    around = list(path.parents)[:_MOST_LEVELS]
    return next((one for one in around if (one / name).is_dir() or (one / f"{name}.py").is_file()), None)


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
    why = format_exception(error)
    if (package := missing_package(error)) is not None and package[0] == ".":
        why = f"there is no module {package}, which it imports relatively"
    hint = install_hint(error) or "fix it so that `python -c 'import …'` accepts it"
    if isinstance(error, FileNotFoundError) and isinstance(error.filename, str):
        to_do = "restore" if Path(error.filename).is_absolute() else "run in a folder that has"
        hint = f"{to_do} {error.filename}, which it reads when it is imported"
    if isinstance(error, TooLong):
        hint = "put what runs long under if __name__ == '__main__', and name the file again"
    if isinstance(error, ImportError) and "relative import beyond" in str(error):
        hint = "name the file in a checkout of its project, whose other files it imports"
    return AttnshapeError(f"{where} doesn't import: {why}{origin(error, where)}", hint)


def origin(error: BaseException, where: str = "") -> str:
    """Return where an exception was raised, as `, at file:line`: the last line in the file `where`, else in any.

    Returns an empty string where no line outside this package raised it, as in a call with too few arguments.
    """
    if isinstance(error, SyntaxError) and error.filename:
        return f", at {display_path(error.filename)}:{error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen importlib")]
    inside = [f for f in frames if where and Path(f.filename).name == Path(where).name]
    ours = str(Path(__file__).resolve().parents[1])
    frames = [f for f in frames if not f.filename.startswith(ours)]
    candidates = inside or frames
    return f", at {display_path(candidates[-1].filename)}:{candidates[-1].lineno}" if candidates else ""


def _similar_file(path: Path) -> str:
    similar = None
    with contextlib.suppress(OSError):
        similar = most_similar(str(path), map(str, path.parent.glob("*.py")))
    return f"did you mean {similar}?" if similar else "check its path; it is taken from the current folder"


def example_of(path: str) -> tuple[str, str]:
    """Return a class or function that a Python file defines, and which it defines in all, without importing it.

    The first that has a softmax, else the first class.
    """
    try:
        tree = ast.parse(Path(path).read_text())
    except (OSError, SyntaxError, ValueError):
        return "Name", ""
    kinds = (ast.ClassDef, ast.FunctionDef)
    defined = [node for node in tree.body if isinstance(node, kinds) and not node.name.startswith("_")]
    defined.sort(key=lambda node: not isinstance(node, ast.ClassDef))
    names = [node.name for node in defined]
    if not names:
        return "Name", ""
    shown = [*names[:_MOST_NAMES], *(["…"] if len(names) > _MOST_NAMES else [])]
    likely = [node.name for node in defined if _has_softmax(node)]
    return (likely or names)[0], f"; it defines {', '.join(shown)}"


def _has_softmax(definition: ast.AST) -> bool:
    nodes = list(ast.walk(definition))
    names = [one.id for one in nodes if isinstance(one, ast.Name)]
    names += [one.attr for one in nodes if isinstance(one, ast.Attribute)]
    return any("softmax" in name.lower() for name in names)


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
        _forget(before)


def _forget(before: Collection[str]) -> None:
    """Remove the modules that aren't among those before, except those of installed packages.

    Some of these can't be imported twice, wherever they are installed: in the environment, or outside of it.
    """
    folders = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    torch_file = getattr(sys.modules.get("torch"), "__file__", None)
    folders += [Path(__file__).resolve().parents[1], *([_resolve(torch_file).parent] if torch_file else ())]
    # all are looked at before any is removed, since a namespace package looks its parent up
    places_of = {name: _places(sys.modules.get(name)) for name in sys.modules.keys() - before}
    for name, places in places_of.items():
        if any(installed_package(place) is not None for place in places):
            continue
        if places and not any(Path(place).is_relative_to(folder) for place in places for folder in folders):
            sys.modules.pop(name, None)


def _places(module: ModuleType | None) -> list[str]:
    """Return the file or the folders of a module; nothing if it has none, or if the package it is in is gone."""
    # a module whose import is interrupted is gone again
    if file := getattr(module, "__file__", None):
        return [file]
    with contextlib.suppress(KeyError):
        return list(getattr(module, "__path__", ()))
    return []


def _import_folder(target: str) -> Path:
    """Return the folder from which a target's file is imported: for a file in a package, the package's parent."""
    path = target.partition(":")[0].strip()
    return _module_name(_resolve(path) if path.endswith(".py") or "/" in path else _resolve("") / "module.py")[1]


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
