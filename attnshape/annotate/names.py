"""What a file's names mean: where its imports at module level lead, and which names it binds at all."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import libcst as cst

from attnshape.annotate.tree import Tree, dotted


@dataclass(frozen=True)
class Names:
    """The names of one file."""

    origins: Mapping[str, str]
    """What was imported at module level, by the name it has there: `F` to `torch.nn.functional`."""
    bound: frozenset[str]
    """Every name that is bound anywhere in the file."""

    def origin(self, text: str) -> str:
        """Return the full name that a dotted name stands for: `torch.nn.Module` for `nn.Module`; itself if unknown."""
        first, dot, rest = text.partition(".")
        return f"{self.origins.get(first, first)}{dot}{rest}"

    def called(self, full: str) -> str | None:
        """Return how the file says a full name such as `torch.Tensor`; None where it has no name for it."""
        for name, origin in self.origins.items():
            if origin == full:
                return name
        for name, origin in self.origins.items():
            if full.startswith(f"{origin}."):
                return name + full.removeprefix(origin)
        return None

    def is_free(self, name: str) -> bool:
        """Say whether nothing in the file binds a name."""
        return name not in self.bound


@functools.lru_cache(maxsize=4)
def names(tree: Tree) -> Names:
    """Return what a file's names mean."""
    origins: dict[str, str] = {}
    for line in tree.module.body:
        if isinstance(line, cst.SimpleStatementLine):
            for statement in line.body:
                origins |= imported(statement)
    binder = _Binder()
    tree.module.visit(binder)
    return Names(origins, frozenset(binder.found))


def imported(statement: cst.CSTNode) -> dict[str, str]:
    """Return the names that an import binds, with what they stand for; relative ones keep their dots."""
    match statement:
        case cst.Import(names=aliases):
            found = {}
            for one in aliases:
                full = dotted(one.name)
                name = one.evaluated_alias
                found[name or full.partition(".")[0]] = full if name else full.partition(".")[0]
            return found
        case cst.ImportFrom(names=aliases) as given if not isinstance(aliases, cst.ImportStar):
            module = "." * len(given.relative) + (dotted(given.module) if given.module is not None else "")
            return {one.evaluated_alias or one.evaluated_name: f"{module}.{one.evaluated_name}" for one in aliases}
    return {}


class _Binder(cst.CSTVisitor):
    """Gathers every name that a file binds; those that it only reads, and attributes, don't count."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def _targets(self, node: cst.CSTNode) -> None:
        match node:
            case cst.Name(value=name):
                self.found.add(name)
            case cst.Tuple() | cst.List() | cst.StarredElement() | cst.Element():
                for child in node.children:
                    self._targets(child)

    def on_visit(self, node: cst.CSTNode) -> bool:
        match node:
            case cst.AssignTarget() | cst.AnnAssign() | cst.AugAssign() | cst.For() | cst.CompFor() | cst.NamedExpr():
                self._targets(node.target)
            case cst.FunctionDef(name=name) | cst.ClassDef(name=name) | cst.Param(name=name):
                self._targets(name)
            case cst.AsName(name=name):
                self._targets(name)
            case cst.Import() | cst.ImportFrom():
                self.found |= imported(node).keys()
        return True
