"""The cases: pairs of wrong and correct attention code, and unusual code that is correct."""

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Pair:
    """One mistake in one style of code: both versions have the same weights, inputs and shapes, but other values."""

    code: str
    name: str
    file: str
    """Relative to the repository's root."""
    wrong: str
    """The case with the mistake: a function of sizes in the file."""
    right: str
    reference: str
    """Computes the right result from the same callable and inputs in float64, independently."""
    sizes: tuple[dict[str, int], ...]

    def __str__(self) -> str:
        return f"{self.code}-{self.name}"


@dataclass(frozen=True)
class Unusual:
    """Right attention code in an unusual style."""

    name: str
    file: str
    case: str
    reference: str | None
    sizes: tuple[dict[str, int], ...]

    def __str__(self) -> str:
        return self.name


@cache
def load(file: str) -> ModuleType:
    """Return the module of a file, given relative to the repository's root."""
    path = ROOT / file
    name = f"mutants_{path.parent.name}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def function(entry: Pair | Unusual, name: str) -> Callable[..., Any]:
    """Return one of an entry's functions, `function(pair, pair.wrong)`."""
    found = getattr(load(entry.file), name)
    assert callable(found)
    return found


def wrong_line(pair: Pair) -> int | None:
    """Return the number of the line with the mistake; None if it isn't in a single line."""
    marker = f"# wrong: {pair.code} {pair.name}"
    lines = (ROOT / pair.file).read_text(encoding="utf-8").splitlines()
    return next((number for number, line in enumerate(lines, 1) if line.endswith(marker)), None)


def _files(folder: str) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in sorted((FOLDER / folder).glob("*.py"))]


def _pairs(file: str) -> list[Pair]:
    return [
        Pair(code, name, file, f"wrong_{name}", f"right_{name}", f"reference_{name}", tuple(sizes))
        for code, name, *sizes in getattr(load(file), "PAIRS", ())
    ]


def _unusual(file: str) -> list[Unusual]:
    module = load(file)
    found = []
    for name, *sizes in getattr(module, "UNUSUAL", ()):
        reference = f"reference_{name}"
        found.append(
            Unusual(name, file, f"case_{name}", reference if hasattr(module, reference) else None, tuple(sizes))
        )
    return found


PAIRS: tuple[Pair, ...] = tuple(pair for file in _files("pairs") for pair in _pairs(file))
UNFOUND: tuple[Pair, ...] = tuple(pair for file in _files("unfound") for pair in _pairs(file))
"""Their mistakes aren't found; what the mistakes contradict isn't verified either."""
UNUSUAL: tuple[Unusual, ...] = tuple(unusual for file in _files("unusual") for unusual in _unusual(file))
