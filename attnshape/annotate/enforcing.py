"""`--enforce`: adds decorators that check annotations, and beartype's import hook, which checks variables."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import libcst as cst
from libcst.codemod.visitors import ImportItem

from attnshape.annotate.source import Edit, PythonSource, decode_source
from attnshape.annotate.syntax import Definition, Tree, dotted_name, parse, small_statements
from attnshape.errors import AttnshapeError
from attnshape.runtime.files import display_path

_JAXTYPED = "jaxtyping.jaxtyped"
_DESCRIPTORS = ("staticmethod", "classmethod", "property")
_TRANSPARENT = (*_DESCRIPTORS, "abc.abstractmethod", "typing.final", "typing.override", "typing_extensions.override")
"""Decorators that don't hide from beartype's hook that jaxtyping checks a function."""
_HOOKS = ("beartype_this_package", "beartype_package", "beartype_packages", "beartype_all")


def functions_without_typechecker(tree: Tree) -> frozenset[str]:
    """Return the functions whose own `@jaxtyped(typechecker=None)` checks only their local variables."""
    names = set()
    for definition in tree.definitions:
        calls = [decorator.decorator for decorator in definition.node.decorators]
        jaxtyped = [tree.code(call).replace(" ", "") for call in calls if tree.origin(dotted_name(call)) == _JAXTYPED]
        if jaxtyped and all("typechecker=None" in code for code in jaxtyped):
            names.add(definition.name)
    return frozenset(names)


def decorator_edits(
    tree: Tree, functions: Sequence[Definition], unchecked: Collection[str]
) -> tuple[list[Edit], list[ImportItem]]:
    """Return the decorators to insert and their imports; for `unchecked` functions, only variables are checked."""
    edits: list[Edit] = []
    needed: set[tuple[str, str]] = set()
    jaxtyped = tree.spelling("jaxtyping", "jaxtyped")
    for function in functions:
        if any(tree.origin(decorator) == _JAXTYPED for decorator in function.decorators):
            continue
        needed.add(("jaxtyping", "jaxtyped"))
        checker = "None"
        if function.name not in unchecked:
            needed.add(("beartype", "beartype"))
            checker = tree.spelling("beartype", "beartype")
        edits.append(_insert_line_above(tree, function.node, f"@{jaxtyped}(typechecker={checker})"))
        # otherwise beartype's hook would check the arguments again outside of other decorators, without bound symbols
        for decorator, name in zip(function.node.decorators, function.decorators, strict=True):
            if tree.origin(name) not in _TRANSPARENT and not name.endswith((".setter", ".getter", ".deleter")):
                edits.append(_insert_line_above(tree, decorator, f"@{jaxtyped}(typechecker=None)"))
                break
    return edits, [item for name in needed if (item := tree.missing_import(*name)) is not None]


def _insert_line_above(tree: Tree, node: cst.CSTNode, text: str) -> Edit:
    at = tree.start(node)
    indent = tree.source.utf8[tree.source.line_start(at) : at].decode()
    return Edit(at, at, f"{text}{tree.source.newline}{indent}")


@dataclass(frozen=True)
class ImportHook:
    """The import hook of a module, and the file that sets it."""

    module: str
    """The module's full name if it is part of a package, else the file's stem."""
    package: Path | None
    """The `__init__.py` that sets the hook; None if the module isn't in a package."""

    @property
    def is_possible(self) -> bool:
        """Whether the module can be imported by name."""
        return all(part.isidentifier() for part in self.module.split("."))

    @property
    def lines(self) -> tuple[str, str]:
        """The lines that must run before the module is imported."""
        return "from beartype.claw import beartype_package", f'beartype_package("{self.module}")'


def find_hook(path: Path) -> ImportHook:
    """Return the import hook of a file, which its package must set: a module can't hook its own import."""
    module = path.parent if path.stem == "__init__" else path
    packages = _packages_around(module)
    names = [*(package.parent.name for package in reversed(packages)), module.stem if module is path else module.name]
    return ImportHook(".".join(names), packages[0] if packages else None)


def _packages_around(path: Path) -> list[Path]:
    """Return the `__init__.py` of each package that contains a file or folder, innermost first."""
    packages = (folder / "__init__.py" for folder in path.parents)
    return list(itertools.takewhile(Path.is_file, packages))


def hook_edits(hook: ImportHook) -> tuple[PythonSource, tuple[Edit, ...]] | None:
    """Return the package's file and the edits that set the hook; None if one is set or there is no package.

    libcst's AddImportsVisitor isn't used, since it adds an import below the others: the hook must be set before the
    package imports any of its modules.
    """
    if hook.package is None:
        return None
    if any(_sets_hook(_parse_file(package), hook.module) for package in _packages_around(hook.package)):
        return None
    tree = _parse_file(hook.package)
    source, newline = tree.source, tree.source.newline
    call = f'{tree.spelling("beartype.claw", "beartype_package")}("{hook.module}")'
    if tree.missing_import("beartype.claw", "beartype_package") is None:  # the call must follow the import of the name
        for line in reversed(tree.module.body):
            if isinstance(line, cst.SimpleStatementLine) and any(_uses_beartype(part, tree) for part in line.body):
                at = _end_of_line(tree, line)
                return source, (Edit(at, at, newline + call),)
    at = _after_docstring(tree)
    text = newline.join(["from beartype.claw import beartype_package", "", call, ""])
    before = newline if at and source.utf8[:at].endswith((b"\n", b"\r")) else newline * 2 if at else ""
    return source, (Edit(at, at, f"{before}{text}{newline if source.utf8[at:].strip() else ''}"),)


def _uses_beartype(statement: cst.CSTNode, tree: Tree) -> bool:
    match statement:
        case cst.Expr(value=cst.Call(func=function)):
            return tree.origin(dotted_name(function)).startswith("beartype.claw.")
        case cst.Import(names=names):
            return any(dotted_name(alias.name).startswith("beartype") for alias in names)
        case cst.ImportFrom(module=module, relative=[]) if module is not None:
            return dotted_name(module).startswith("beartype")
    return False


def _after_docstring(tree: Tree) -> int:
    """Return the offset after a file's docstring and `__future__` imports, or after its leading comments."""
    at = 0
    for index, line in enumerate(tree.module.body):
        if not isinstance(line, cst.SimpleStatementLine):
            break
        match line.body[0]:
            case cst.Expr(value=cst.SimpleString()) if index == 0:
                at = _end_of_line(tree, line)
            case cst.ImportFrom(module=cst.Name(value="__future__")):
                at = _end_of_line(tree, line)
            case _:
                break
        newline = re.compile(rb"\r\n|\r|\n").match(tree.source.utf8, at)
        at = newline.end() if newline is not None else at
    if at == 0 and tree.module.header:
        body, source = tree.module.body, tree.source
        return source.line_start(tree.start(body[0])) if body else len(source.utf8)
    return at


def _end_of_line(tree: Tree, line: cst.SimpleStatementLine) -> int:
    end = tree.end(line.body[-1])
    line_end = tree.source.end_of_line(end)
    return line_end.at if line_end is not None else end


def _parse_file(path: Path) -> Tree:
    try:
        return parse(decode_source(path, path.read_bytes()))
    except OSError as error:
        problem = f"{display_path(str(path))} can't be read: {error.strerror}"
        raise AttnshapeError(problem, "leave --enforce out, or make it readable") from None


def _sets_hook(tree: Tree, module: str) -> bool:
    for statement in small_statements(tree.module.body):
        if isinstance(statement, cst.Expr) and isinstance(statement.value, cst.Call):
            name = tree.origin(dotted_name(statement.value.func)).rpartition("beartype.claw.")[2]
            packages = re.findall(r"[\"']([\w.]+)[\"']", tree.code(statement.value))
            within = any(f"{module}.".startswith(f"{package}.") for package in packages)
            if name in ("beartype_this_package", "beartype_all") or (name in _HOOKS and within):
                return True
    return False
