"""The Python files of a folder that are the project's own."""

from __future__ import annotations

import ast
import contextlib
import itertools
import os
import re
import subprocess
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from attnshape import __version__
from attnshape.discovery.project import find_attention
from attnshape.errors import AttnshapeError, exception_message
from attnshape.model.targets import FoundTarget, FoundTargets, UnreadFile

_NOT_OWN = frozenset({"build", "dist", "node_modules", "site-packages", "__pycache__"})
_TEST = re.compile(r"test_.*\.py|.*_test\.py|conftest\.py")
_NAMES_ATTENTION = re.compile(r"Atten|Attn")
_MOST_IMPORTED = 60
"""How many files are read because others import from them."""
_MOST_LEVELS = 5
"""In how many folders around a file a module is looked for that it imports."""
_TEST_FOLDERS = frozenset({"tests", "test", "testing"})


def find_targets(places: Sequence[str], command: str) -> FoundTargets:
    """Return the attention in files and folders, which are read as text and not imported.

    Of a folder these files are left out: hidden ones, virtual environments and builds, what git ignores, and tests.

    Raises:
        AttnshapeError: There is no such file or folder.
    """
    files: dict[Path, None] = {}
    tests = 0
    for place in places:
        path = Path(place)
        if not path.exists():
            raise AttnshapeError(f"there is no file or folder {place[:80]!r}", "name a Python file or a folder: src/")
        if path.is_dir():
            own = list(_files_of(path))
            kept = [one for one in own if not _is_test(one.relative_to(path))]
            tests += len(own) - len(kept)
            files |= dict.fromkeys(kept)
        else:
            files[path] = None
    texts: dict[Path, str] = {}
    unread: list[UnreadFile] = []
    for path in files:
        try:
            text = path.read_text(encoding="utf-8")
            with warnings.catch_warnings(action="ignore"):  # such as of invalid escapes in strings
                ast.parse(text)
            texts[path] = text
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError) as error:
            line = f", at line {error.lineno}" if isinstance(error, SyntaxError) else ""
            unread.append(UnreadFile(file=str(path), why=f"{exception_message(error)}{line}"))
    found = tuple(
        FoundTarget(
            target=f"{one.file}:{one.name}",
            file=str(one.file),
            name=one.name,
            line=one.line,
            kind=one.kind,
            why=one.why,
        )
        for one in find_attention([*texts.items(), *_imported(texts)])
        if one.file in texts
    )
    return FoundTargets(
        attnshape=__version__,
        command=command,
        files=len(texts),
        tests=tests,
        targets=found,
        unread=tuple(unread),
    )


def modules_by_name(place: str) -> tuple[FoundTarget, ...]:
    """Return the modules that a file calls attention, or its only one; for a file whose code shows no attention.

    Such code has a softmax that isn't followed by a product: its weights are multiplied and summed, or returned.
    """
    path = Path(place)
    classes = [node for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
    modules: list[ast.ClassDef] = []
    for node in classes:
        bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        if bases & {"Module", *(one.name for one in modules)}:
            modules.append(node)
    modules = [node for node in modules if not any(_is_abstract(inner) for inner in node.body)]
    named = [node for node in modules if _NAMES_ATTENTION.search(node.name)]
    chosen = named or (modules if len(modules) == 1 else [])
    return tuple(
        FoundTarget(
            target=f"{path}:{node.name}", file=place, name=node.name, line=node.lineno, kind="module", why="its name"
        )
        for node in chosen
    )


def _is_abstract(node: ast.stmt) -> bool:
    """Return whether a statement defines a `forward` that is left to others."""
    if not isinstance(node, ast.FunctionDef) or node.name != "forward":
        return False
    return "NotImplementedError" in ast.unparse(node.body[-1])


def _imported(texts: Mapping[Path, str]) -> list[tuple[Path, str]]:
    """Return the files of the project, with their texts, that files import from, directly or through others."""
    known = {path.resolve() for path in texts}
    found: list[tuple[Path, str]] = []
    waiting = list(texts.items())
    while waiting and len(found) < _MOST_IMPORTED:
        path, text = waiting.pop(0)
        for other in _imports(path, text):
            if (resolved := other.resolve()) in known:
                continue
            known.add(resolved)
            with contextlib.suppress(OSError, SyntaxError, ValueError, RecursionError, MemoryError):
                inner = other.read_text(encoding="utf-8")
                with warnings.catch_warnings(action="ignore"):
                    ast.parse(inner)
                found.append((other, inner))
                waiting.append((other, inner))
    return found


def _imports(path: Path, text: str) -> Iterator[Path]:
    """Yield the files that a file imports from, if they are beside it or in one of the folders around it."""
    with warnings.catch_warnings(action="ignore"):
        tree = ast.parse(text)
    around = list(path.resolve().parents)[:_MOST_LEVELS]
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=module, names=names, level=level):
                parts = [part for part in (module or "").split(".") if part]
                roots = around[level - 1 : level] if level else around
                modules = [parts, *([*parts, alias.name] for alias in names)]
            case ast.Import(names=names):
                roots, modules = around, [alias.name.split(".") for alias in names]
            case _:
                continue
        for root, inner in itertools.product(roots, modules):
            file = root.joinpath(*inner)
            candidates = (file.with_name(f"{file.name}.py"), file / "__init__.py") if inner else (root / "__init__.py",)
            yield from (one for one in candidates if one.is_file())


def _is_test(path: Path) -> bool:
    return bool(_TEST.fullmatch(path.name)) or not _TEST_FOLDERS.isdisjoint(path.parts[:-1])


def _files_of(folder: Path) -> Iterator[Path]:
    """Yield the Python files of a folder in order, without what git ignores and what others wrote."""
    ignored = _ignored(folder)
    for parent, folders, names in os.walk(folder):
        here = Path(parent)
        folders[:] = sorted(name for name in folders if _is_own(here / name) and here / name not in ignored)
        for name in sorted(names):
            if name.endswith(".py") and not name.startswith(".") and here / name not in ignored:
                yield here / name


def _is_own(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or folder.name in _NOT_OWN or folder.name.endswith(".egg-info")
    return not hidden and not (folder / "pyvenv.cfg").is_file()


def _ignored(folder: Path) -> frozenset[Path]:
    """Return the files and folders that git ignores; none where there is no git, or no repository."""
    # a repository may name a program to be run as its file-system monitor
    command = [
        "git",
        "-c",
        "core.fsmonitor=false",
        "-C",
        str(folder),
        "ls-files",
        "-oiz",
        "--exclude-standard",
        "--directory",
    ]
    try:
        listed = subprocess.run(command, capture_output=True, check=True, timeout=10).stdout
    except (OSError, subprocess.SubprocessError):
        return frozenset()
    return frozenset(folder / os.fsdecode(name) for name in listed.split(b"\0") if name)
