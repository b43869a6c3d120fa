"""`--enforce`: the decorators that have annotations checked, and the hook without which local ones aren't."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import libcst as cst

from attnshape.annotate.imports import Needed, behind_the_docstring, needed, said
from attnshape.annotate.names import Names, imported, names
from attnshape.annotate.source import Edit, Source, decoded
from attnshape.annotate.tree import Definition, Tree, dotted, parse, small_statements
from attnshape.errors import AttnshapeError
from attnshape.paths import display_path

_JAXTYPED = "jaxtyping.jaxtyped"
_DESCRIPTORS = ("staticmethod", "classmethod", "property")
_TRANSPARENT = (*_DESCRIPTORS, "abc.abstractmethod", "typing.final", "typing.override", "typing_extensions.override")
"""Decorators through which beartype's hook sees that jaxtyping checks a function already."""
_HOOKS = ("beartype_this_package", "beartype_package", "beartype_packages", "beartype_all")


def already_unchecked(tree: Tree, names: Names) -> frozenset[str]:
    """Return the functions whose decorator says already that only their local variables are checked."""
    found = set()
    for one in tree.definitions:
        own = [d.decorator for d in one.node.decorators if names.origin(dotted(d.decorator)) == _JAXTYPED]
        if own and all("typechecker=None" in tree.code(call).replace(" ", "") for call in own):
            found.add(one.name)
    return frozenset(found)


@dataclass(frozen=True)
class Decorated:
    """The edits that decorate functions, and what they need imported."""

    edits: tuple[Edit, ...]
    needed: tuple[Needed, ...]


def decorated(tree: Tree, names: Names, functions: Sequence[Definition], unchecked: Collection[str]) -> Decorated:
    """Return what has functions checked; of those in `unchecked`, only the local variables."""
    edits: list[Edit] = []
    needs: list[Needed | None] = []
    jaxtyped = said(names, "jaxtyping", "jaxtyped")
    for one in functions:
        if any(names.origin(decorator) == _JAXTYPED for decorator in one.decorators):
            continue
        checker = "None"
        if one.name not in unchecked:
            checker = said(names, "beartype", "beartype")
            needs.append(needed(names, "beartype", "beartype"))
        needs.append(needed(names, "jaxtyping", "jaxtyped"))
        edits.append(_above(tree, one.node, f"@{jaxtyped}(typechecker={checker})"))
        # beartype's hook would check the arguments once more, above other decorators, where no symbol is bound yet
        opaque = next((d for d in one.node.decorators if not _is_transparent(d, names)), None)
        if opaque is not None:
            edits.append(_above(tree, opaque, f"@{jaxtyped}(typechecker=None)"))
    return Decorated(tuple(edits), tuple(dict.fromkeys(one for one in needs if one is not None)))


def _is_transparent(decorator: cst.Decorator, names: Names) -> bool:
    name = dotted(decorator.decorator)
    return names.origin(name) in _TRANSPARENT or name.endswith((".setter", ".getter", ".deleter"))


def _above(tree: Tree, node: cst.CSTNode, text: str) -> Edit:
    at = tree.start(node)
    indent = tree.source.utf8[tree.source.line_start(at) : at].decode()
    return Edit(at, at, f"{text}{tree.source.newline}{indent}")


@dataclass(frozen=True)
class Hook:
    """Where the hook of a module stands or has to be written."""

    module: str
    """The module's full name, where it is part of a package; its file's stem where it stands alone."""
    package: Path | None
    """The `__init__.py` in which it belongs; None where the module stands alone."""

    @property
    def is_possible(self) -> bool:
        """Whether the module can be imported by its name at all."""
        return all(part.isidentifier() for part in self.module.split("."))

    @property
    def lines(self) -> tuple[str, str]:
        """What must run before the module is imported."""
        return "from beartype.claw import beartype_package", f'beartype_package("{self.module}")'


def hook(path: Path) -> Hook:
    """Return where the hook of a file belongs: nothing can hook itself once it is being imported."""
    names, folder = [path.stem], path.parent
    if path.stem == "__init__":
        names, folder = [path.parent.name], path.parent.parent
    package = folder / "__init__.py" if (folder / "__init__.py").is_file() else None
    while (folder / "__init__.py").is_file():
        names.insert(0, folder.name)
        folder = folder.parent
    return Hook(".".join(names), package)


def hooked(wanted: Hook) -> tuple[Source, list[Edit]] | None:
    """Return the package's file and the edits that set the hook; None where one is set, or the module stands alone."""
    if wanted.package is None:
        return None
    folder = wanted.package.parent
    while (folder / "__init__.py").is_file():
        if _sets_hook(_tree(folder / "__init__.py"), wanted.module):
            return None
        folder = folder.parent
    tree = _tree(wanted.package)
    source, newline = tree.source, tree.source.newline
    known = names(tree)
    call = f'{said(known, "beartype.claw", "beartype_package")}("{wanted.module}")'
    there = _last_of_beartype(tree, known)
    if there is not None:  # what imports the name must stay above
        end = tree.end(there.body[-1])
        behind = source.end_of_line(end)
        at = behind.at if behind is not None else end
        return source, [Edit(at, at, newline + call)]
    at = behind_the_docstring(tree)
    text = newline.join(["from beartype.claw import beartype_package", "", call, ""])
    before = newline if at and source.utf8[:at].endswith((b"\n", b"\r")) else newline * 2 if at else ""
    return source, [Edit(at, at, f"{before}{text}{newline if source.utf8[at:].strip() else ''}")]


def _last_of_beartype(tree: Tree, known: Names) -> cst.SimpleStatementLine | None:
    """Return the last line at module level that is of beartype's, where one imports `beartype_package`."""
    if needed(known, "beartype.claw", "beartype_package") is not None:
        return None
    lines = [line for line in tree.module.body if isinstance(line, cst.SimpleStatementLine)]
    own = [line for line in lines if any(_is_of_beartype(statement, known) for statement in line.body)]
    return own[-1] if own else None


def _is_of_beartype(statement: cst.CSTNode, known: Names) -> bool:
    if isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call):
        return known.origin(dotted(statement.value.func)).startswith("beartype.claw.")
    return any(origin.startswith("beartype") for origin in imported(statement).values())


def _tree(path: Path) -> Tree:
    try:
        return parse(decoded(path, path.read_bytes()))
    except OSError as error:
        raise AttnshapeError(
            f"{display_path(str(path))} can't be read: {error.strerror}", "leave --enforce out, or make it readable"
        ) from None


def _sets_hook(tree: Tree, module: str) -> bool:
    known = names(tree)
    for call in _calls(tree):
        name = known.origin(dotted(call.func)).rpartition("beartype.claw.")[2]
        if name in ("beartype_this_package", "beartype_all"):
            return True
        texts = re.findall(r"[\"']([\w.]+)[\"']", tree.code(call))
        if name in _HOOKS and any(module == text or module.startswith(f"{text}.") for text in texts):
            return True
    return False


def _calls(tree: Tree) -> Iterator[cst.Call]:
    for statement in small_statements(tree.module.body):
        if isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call):
            yield statement.value
