"""What a result depends on besides the request: the files that the code imported and read, and the environment.

`dependencies_of` is called where the code has run, `is_unchanged` in a later process, before anything is imported.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib.metadata
import os
import platform
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType

from msgspec import Struct

from attnshape.runtime.files import files_opened

_OWN = Path(__file__).resolve().parents[1]
_LARGE = 64 * 2**20
"""Of a larger file the size and the time of its last change stand for its contents."""
_SYSTEM = ("/proc/", "/sys/", "/dev/", "/etc/", "/usr/", "/lib/", "/lib64/")
_RELEVANT = ("PYTHON", "TORCH", "PYTORCH", "CUDA", "OMP_", "MKL_", "HF_", "TRANSFORMERS_")
"""How the names of those environment variables begin that commonly change what code does."""
_DYNAMIC = ("import_module", "__import__", "spec_from_file_location", "load_module", "run_path", "exec(")


class Dependencies(Struct, frozen=True, forbid_unknown_fields=True):
    """Files by absolute path, and what would be imported in the place of what was."""

    files: dict[str, str | None]
    """The digest of each file's contents; None for a file that was looked for and isn't there."""
    shadows: dict[str, list[str]]
    """For each folder from which the code imports, the modules in it with names that code outside of it imports."""
    foreign: list[str]
    """These names."""


def environment(version: str) -> str:
    """Return a digest of what every result depends on: versions, installed packages, platform, some variables.

    Args:
        version: The version of this package.
    """
    versions = [version, _own_sources(), sys.version, platform.platform(), importlib.metadata.version("torch")]
    variables = sorted(f"{name}={value}" for name, value in os.environ.items() if name.startswith(_RELEVANT))
    return _digest("\0".join([*versions, *_installed_packages(), "", *variables]).encode(errors="surrogateescape"))


def dependencies_of(where: str | None, since: float) -> Dependencies | None:
    """Return what a target depends on, now that it has run; None if it can't be told.

    These are the project's modules that its module imports, directly or through others, and the files that were read.

    Args:
        where: The target's module, as the user typed it: `file.py` or `package.module`; None if it isn't the user's.
        since: The time before which each of the files must have got its contents, in seconds of `time.time`: what ran
            may be older than what a later change left.
    """
    used: dict[str, str] = {}
    modules: dict[str, str] = {}
    if where is not None:
        root = _module_of(where)
        modules = _project_modules(root)
        if root is None or root.__name__ not in modules:
            return None
        used = _imported(root.__name__, modules)
    present = [*used.values(), *_data_files()]
    if any(_changed_after(file, since) for file in present):
        return None
    files = {file: _file_digest(file) for file in [*present, *_missing(used, modules)]}
    names = {name.partition(".")[0] for name in list(sys.modules) if name not in modules}
    imported = {name for file in used.values() for name in _absolute_names(file)}
    foreign = sorted(names | imported - {name.partition(".")[0] for name in modules})
    folders = {
        str(folder) for name, file in used.items() for folder in (_import_root(name, Path(file)), Path(file).parent)
    }
    return Dependencies(files, {folder: _shadowing(folder, foreign) for folder in sorted(folders)}, foreign)


def forget_files() -> None:
    """Forget what this process knows of files, which may have changed since."""
    for function in (_file_digest, _top_level, _imports, _installed_packages):
        function.cache_clear()


def is_unchanged(dependencies: Dependencies) -> bool:
    """Return whether all files are what they were, and the same modules would be imported."""
    return all(_file_digest(file) == digest for file, digest in dependencies.files.items()) and all(
        _shadowing(folder, dependencies.foreign) == names for folder, names in dependencies.shadows.items()
    )


# modules


def _module_of(where: str) -> ModuleType | None:
    """Return the module of a target; None if it isn't imported."""
    if where.endswith(".py") or "/" in where:
        path = str(Path(where).resolve())
        candidates = [module for module in list(sys.modules.values()) if getattr(module, "__file__", None) == path]
        return candidates[0] if candidates else None
    return sys.modules.get(where)


def _project_modules(root: ModuleType | None) -> dict[str, str]:
    """Return the file of each module that is part of no installed package; of the target's own package in any case."""
    own = root.__name__.partition(".")[0] if root is not None else ""
    modules = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and (name.partition(".")[0] == own or not _is_installed(file)):
            modules[name] = os.path.abspath(file)  # noqa: PTH100 - links stay what they are
    return modules


def _imported(start: str, modules: Mapping[str, str]) -> dict[str, str]:
    """Return the modules that a module imports, directly or through others, with itself, and their packages."""
    used: dict[str, str] = {}
    waiting = [start]
    while waiting:
        name = waiting.pop()
        if name in used or name not in modules:
            continue
        used[name] = modules[name]
        waiting += list(_packages(name))
        imported = _imports(modules[name], _package(name))
        if imported is None:  # what the code computes the names of may be any module
            return dict(modules)
        waiting += [one for full in imported for one in (full, *_packages(full))]
    return used


def _packages(name: str) -> Iterator[str]:
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _package(name: str) -> str:
    package = getattr(sys.modules.get(name), "__package__", None)
    return package if isinstance(package, str) else name.rpartition(".")[0]


@functools.cache
def _imports(file: str, package: str) -> frozenset[str] | None:
    """Return the full names that a file's import statements may stand for; None if they can't be told."""
    try:
        text = Path(file).read_text(encoding="utf-8")
        tree = ast.parse(text)
    except (OSError, SyntaxError, ValueError, RecursionError):
        return None
    if any(word in text for word in _DYNAMIC):
        return None
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = parts[: len(parts) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            names |= {module, *(f"{module}.{alias.name}" for alias in node.names)}
    return frozenset(names)


def _missing(used: Mapping[str, str], modules: Mapping[str, str]) -> Iterator[str]:
    """Yield the files that would be imported if they were there, as where a package has an optional part."""
    packages = {name: Path(file).parent for name, file in used.items() if Path(file).name == "__init__.py"}
    for name, file in used.items():
        for imported in _imports(file, _package(name)) or ():
            package, _, last = imported.rpartition(".")
            if package in packages and imported not in modules:
                yield from (str(packages[package] / f"{last}.py"), str(packages[package] / last / "__init__.py"))


def _absolute_names(file: str) -> set[str]:
    return {name.partition(".")[0] for name in _imports(file, "") or () if name and not name.startswith(".")}


def _import_root(name: str, file: Path) -> Path:
    """Return the folder in which a module is found by its full name."""
    levels = name.count(".") + (file.name == "__init__.py")
    return file.parents[levels] if levels < len(file.parents) else file.parent


def _shadowing(folder: str, foreign: Iterable[str]) -> list[str]:
    return sorted(_top_level(folder).intersection(foreign))


@functools.cache
def _top_level(folder: str) -> frozenset[str]:
    try:
        return frozenset(entry.partition(".")[0] for entry in os.listdir(folder) if not entry.startswith("."))  # noqa: PTH208
    except OSError:
        return frozenset()


# files


@functools.cache
def _installed_folders() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    folders = [sysconfig.get_path(name) for name in names]
    folders += [entry for entry in sys.path if Path(entry).name in ("site-packages", "dist-packages")]
    return tuple(dict.fromkeys(f"{folder}{os.sep}" for folder in (*folders, str(_OWN))))


def _is_installed(file: str) -> bool:
    return file.startswith(_installed_folders())


def _data_files() -> Iterator[str]:
    """Yield the files that were read, apart from Python's own, those of the system and those of installed packages."""
    prefixes = (*_SYSTEM, f"{sys.prefix}{os.sep}", f"{sys.base_prefix}{os.sep}")
    own = os.path.abspath("pyproject.toml")  # noqa: PTH100 - what it says of a target is part of the request
    for name in sorted(files_opened()):
        file = os.path.abspath(name)  # noqa: PTH100
        is_python = file.endswith((".py", ".pyc")) or f"{os.sep}." in file
        is_elsewhere = _is_installed(file) or file.startswith(prefixes) or os.path.isdir(file)  # noqa: PTH112
        if not is_python and file != own and not is_elsewhere:
            yield file


@functools.cache
def _file_digest(file: str) -> str | None:
    """Return a digest of a file's contents; None if it isn't there, or is no file that has some."""
    path = Path(file)
    try:
        if not path.is_file():
            return None
        status = path.stat()
        if status.st_size > _LARGE:
            return f"{status.st_size} {status.st_mtime_ns}"
        return _digest(path.read_bytes())
    except (OSError, ValueError):
        return None


def _changed_after(file: str, since: float) -> bool:
    try:
        return os.stat(file).st_mtime > since  # noqa: PTH116 - for many files
    except (OSError, ValueError):
        return False


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@functools.cache
def _own_sources() -> str:
    """Return a digest of this package's files, which change without a new version where it is being developed."""
    files = sorted(_OWN.rglob("*.py"))
    facts = (f"{file.relative_to(_OWN)} {file.stat().st_size} {file.stat().st_mtime_ns}" for file in files)
    return _digest("\0".join(facts).encode(errors="surrogateescape"))


@functools.cache
def _installed_packages() -> tuple[str, ...]:
    """Return the names and versions of the installed packages, as the names of their folders have them."""
    found = []
    for folder in dict.fromkeys([*sys.path, *_installed_folders()]):
        try:
            entries = os.listdir(folder or ".")  # noqa: PTH208 - called for each folder of the import path
        except OSError:
            continue
        found += [entry for entry in entries if entry.endswith((".dist-info", ".egg-info", ".egg-link", ".pth"))]
    return tuple(sorted(found))
