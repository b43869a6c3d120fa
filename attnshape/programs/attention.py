"""Tells which classes of a running program are attention, by their source."""

from __future__ import annotations

import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

from attnshape.discovery.flow import may_matter
from attnshape.discovery.project import Found, find_attention

_OF_TORCH = frozenset({"MultiheadAttention"})
"""The modules of torch that compute attention; the others only contain these."""
_MOST_CHARACTERS = 2_000_000
_STANDARD = sysconfig.get_path("stdlib")


@dataclass(frozen=True)
class AttentionSource:
    """Where a class with attention is defined."""

    file: str
    line: int


class AttentionClasses:
    """The classes that compute attention. Each file is read once, when the first of its classes is constructed."""

    def __init__(self) -> None:
        self._texts: dict[str, str | None] = {}
        self._found: dict[str, dict[str, Found]] = {}

    def source_of(self, kind: type) -> AttentionSource | None:
        """Return where a class is defined, if it computes attention; None for all others."""
        if kind.__module__.partition(".")[0] == "torch":
            return self._own_place(kind) if kind.__name__ in _OF_TORCH else None
        if "<locals>" in kind.__qualname__:
            return None
        for one in kind.__mro__:
            if one.__module__.partition(".")[0] == "torch":
                if one.__name__ in _OF_TORCH:
                    return self._own_place(kind)
                continue
            found = self._in_file(one).get(one.__name__)
            if found is not None and found.kind == "module":
                return self._own_place(kind) or AttentionSource(str(found.file), found.line)
            if "forward" in vars(one):
                return None  # what it inherits isn't what it computes
        return None

    def _own_place(self, kind: type) -> AttentionSource | None:
        file = _file_of(kind)
        if file is None or (text := self._text(file)) is None:
            return None
        start = f"class {kind.__name__}"
        lines = (number for number, line in enumerate(text.splitlines(), 1) if line.lstrip().startswith(start))
        return AttentionSource(file, next(lines, 1))

    def _in_file(self, kind: type) -> dict[str, Found]:
        file = _file_of(kind)
        if file is None:
            return {}
        if file not in self._found:
            text = self._text(file)
            imported = self._imported(kind) if text is not None else []
            matters = text is not None and any(may_matter(_words(one)) for one in (text, *(t for _, t in imported)))
            self._found[file] = {}
            if text is not None and (matters or "Attention" in text):
                pairs = [(Path(file), text), *((Path(path), other) for path, other in imported)]
                try:
                    found = find_attention(pairs)
                except (SyntaxError, ValueError, RecursionError):
                    found = []
                self._found[file] = {one.name: one for one in found if str(one.file) == file}
        return self._found[file]

    def _imported(self, kind: type) -> list[tuple[str, str]]:
        """Return the other files of the same project that define what the module of a class uses."""
        module = sys.modules.get(kind.__module__)
        own, files = _file_of(kind), dict[str, None]()
        for value in list(vars(module).values()) if module is not None and not is_installed(own or "") else ():
            file = _file_of(value) if isinstance(value, type | FunctionType) else None
            if file is not None and file != own and not is_installed(file):
                files[file] = None
        texts = ((file, self._text(file)) for file in files)
        return [(file, text) for file, text in texts if text is not None and may_matter(_words(text))]

    def _text(self, file: str) -> str | None:
        if file not in self._texts:
            try:
                text = Path(file).read_text(encoding="utf-8")
            except (OSError, ValueError):
                text = None
            self._texts[file] = text if text is not None and len(text) <= _MOST_CHARACTERS else None
        return self._texts[file]


def is_installed(file: str) -> bool:
    """Return whether a file belongs to Python or to an installed package."""
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts) or file.startswith(_STANDARD)


def _words(text: str) -> frozenset[str]:
    return frozenset("".join(c if c.isalnum() or c == "_" else " " for c in text).split())


def _file_of(value: object) -> str | None:
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) and file.endswith(".py") else None
