"""A source file's syntax tree: its functions, the stores to plain names, what its names mean, and its imports."""

from __future__ import annotations

import difflib
import functools
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst
from libcst import metadata
from libcst.codemod import CodemodContext
from libcst.codemod.visitors import AddImportsVisitor, ImportItem

from attnshape.annotate.source import Edit, PythonSource
from attnshape.errors import AttnshapeError
from attnshape.observation.forms import Form, FunctionForms
from attnshape.runtime.files import display_path

_CLAUSES = (cst.If, cst.Else, cst.ExceptHandler, cst.ExceptStarHandler, cst.Finally, cst.MatchCase)

Block = Sequence[cst.CSTNode]
"""Statements in order: lines, compound statements, or the small statements of one line."""


@dataclass(frozen=True)
class Definition:
    """A function in the source."""

    name: str
    """Its qualified name: `Attention.forward`."""
    line: int
    """Its first line, a decorator's where it has one."""
    node: cst.FunctionDef

    @property
    def parameters(self) -> list[cst.Param]:
        """Its parameters in order, without `*args` and `**kwargs`."""
        parameters = self.node.params
        return [*parameters.posonly_params, *parameters.params, *parameters.kwonly_params]

    @property
    def decorators(self) -> list[str]:
        """The names of its decorators, without the arguments that they are called with."""
        return [dotted_name(decorator.decorator) for decorator in self.node.decorators]


@dataclass(frozen=True, eq=False)
class Tree:
    """A parsed file."""

    source: PythonSource
    module: cst.Module
    spans: Mapping[cst.CSTNode, metadata.CodeSpan]
    definitions: tuple[Definition, ...]
    wrapper: metadata.MetadataWrapper

    def start(self, node: cst.CSTNode) -> int:
        """Return the offset of a node's first byte."""
        return self.spans[node].start

    def end(self, node: cst.CSTNode) -> int:
        """Return the offset after a node's last byte."""
        return self.spans[node].start + self.spans[node].length

    def code(self, node: cst.CSTNode) -> str:
        """Return a node's text."""
        return self.source.utf8[self.start(node) : self.end(node)].decode()

    def form_of(self, known: FunctionForms, name: cst.Name) -> Form | None:
        """Return what is known of the variable that is bound at a name's place."""
        at = self.start(name)
        line, column = self.source.line(at), at - self.source.line_start(at)
        return known.bindings.get((line, column, name.value))

    def colon(self, function: cst.FunctionDef) -> int:
        """Return the offset of the colon before a function's body."""
        body = function.body
        behind = body.header if isinstance(body, cst.IndentedBlock) else body.leading_whitespace  # type: ignore[attr-defined]  # one of the two
        return self.start(behind) - 1

    def behind_parameters(self, function: cst.FunctionDef) -> int:
        """Return the offset after a function's closing parenthesis, if it has no return annotation."""
        return self.colon(function) - len(self.module.code_for_node(function.whitespace_before_colon).encode())

    @functools.cached_property
    def _scope(self) -> tuple[metadata.GlobalScope, frozenset[str]]:
        """The scope at module level, and every name that is bound anywhere in the file."""
        scopes = set(self.wrapper.resolve(metadata.ScopeProvider).values()) - {None}
        bound = frozenset(assignment.name for scope in scopes if scope is not None for assignment in scope.assignments)
        return next(scope for scope in scopes if isinstance(scope, metadata.GlobalScope)), bound

    @functools.cached_property
    def _imports(self) -> dict[str, str]:
        """What the names stand for that imports at module level bind for certain: `F` for `torch.nn.functional`.

        An import under `if TYPE_CHECKING` or `try` may not have happened where an annotation is evaluated, so it
        doesn't count, and neither does a name with a second binding.
        """
        scope, _ = self._scope
        lines = [line for line in self.module.body if isinstance(line, cst.SimpleStatementLine)]
        certain = {statement for line in lines for statement in line.body}
        imports = {}
        for name in dict.fromkeys(assignment.name for assignment in scope.assignments):
            if all(isinstance(one, metadata.ImportAssignment) and one.node in certain for one in scope[name]):
                origins = {qualified.name for qualified in scope.get_qualified_names_for(name)}
                if len(origins) == 1:
                    imports[name] = origins.pop()
        return imports

    def origin(self, name: str) -> str:
        """Return what a dotted name stands for: `torch.nn.Module` for `nn.Module`; itself if that is unknown."""
        first, dot, rest = name.partition(".")
        return f"{self._imports.get(first, first)}{dot}{rest}"

    def spelling(self, module: str, name: str) -> str:
        """Return how the file spells a module's name, once `missing_import` was added."""
        item, imported = self.missing_import(module, name), self._imported(f"{module}.{name}")
        if item is None or item.obj_name is not None:
            return imported or name
        return f"{item.alias or module}.{name}"

    def missing_import(self, module: str, name: str) -> ImportItem | None:
        """Return the import that `spelling` relies on, None if the file has it."""
        if self._imported(f"{module}.{name}") is not None:
            return None
        bound = self._scope[1]
        if name not in bound:
            return ImportItem(module, name)
        return ImportItem(module, alias=f"_{module}" if module in bound else None)

    def _imported(self, full: str) -> str | None:
        """Return the file's own name for a full name such as `torch.Tensor`, None if it has none."""
        imports = self._imports.items()
        whole = (name for name, origin in imports if origin == full)
        inside = (name + full.removeprefix(origin) for name, origin in imports if full.startswith(f"{origin}."))
        return next(itertools.chain(whole, inside), None)


@functools.lru_cache(maxsize=4)  # a second for a file of some thousand lines
def parse(source: PythonSource) -> Tree:
    """Return a file's syntax tree. Raises AttnshapeError if it can't be parsed."""
    name = display_path(str(source.path))
    try:
        wrapper = metadata.MetadataWrapper(cst.parse_module(source.text), unsafe_skip_copy=True)
    except cst.ParserSyntaxError as error:
        raise AttnshapeError(
            f"{name} can't be parsed: line {error.raw_line}: {error.message.splitlines()[0]}",
            "fix it; if Python itself accepts it, its syntax may be too new for the parser",
        ) from None
    except (RecursionError, ValueError) as error:
        raise AttnshapeError(f"{name} can't be parsed: {type(error).__name__}", "split the file") from None
    if wrapper.module.code != source.text:
        raise AttnshapeError(
            f"{name} can't be reproduced byte for byte: its lines end with lone carriage returns",
            "save it with other line endings",
        )
    spans = wrapper.resolve(metadata.ByteSpanPositionProvider)
    definitions = [
        Definition(name, source.line(spans[node.decorators[0] if node.decorators else node].start), node)
        for name, node in _functions(wrapper.module, "")
    ]
    return Tree(source, wrapper.module, spans, tuple(definitions), wrapper)


def _functions(node: cst.CSTNode, around: str) -> Iterator[tuple[str, cst.FunctionDef]]:
    """Yield the functions in a node with their qualified names."""
    for child in node.children:
        inner = around
        if isinstance(child, (cst.FunctionDef, cst.ClassDef)):
            inner = f"{around}{child.name.value}."
            if isinstance(child, cst.FunctionDef):
                yield inner.removesuffix("."), child
        if isinstance(child, (cst.BaseStatement, cst.BaseSuite, *_CLAUSES)):
            yield from _functions(child, inner)


def import_edits(tree: Tree, wanted: Collection[ImportItem]) -> list[Edit]:
    """Return the edits that add imports: each name to a line that imports from its module, else on a new line.

    libcst's visitor places them; only what differs from the file's text becomes an edit, so all else keeps its bytes.
    """
    if not wanted:
        return []
    items = sorted(wanted, key=lambda item: (item.module_name, item.obj_name or ""))
    visitor = AddImportsVisitor(CodemodContext(wrapper=tree.wrapper), items)
    return _differences(tree.source, visitor.transform_module(tree.module).code)


def _differences(source: PythonSource, new: str) -> list[Edit]:
    """Return the edits that lead from a file's text to a new one, each as short as possible."""
    old_lines, new_lines = source.text.splitlines(keepends=True), new.splitlines(keepends=True)
    above = _common_length(old_lines, new_lines)
    below = _common_length(old_lines[above:][::-1], new_lines[above:][::-1])
    middle, new_middle = old_lines[above : len(old_lines) - below], new_lines[above : len(new_lines) - below]
    edits = []
    for tag, *places in difflib.SequenceMatcher(None, middle, new_middle, autojunk=False).get_opcodes():
        if tag == "equal":
            continue
        first, last, new_first, new_last = (above + place for place in places)
        old, text = "".join(old_lines[first:last]), "".join(new_lines[new_first:new_last])
        start = _common_length(old, text)
        end = _common_length(old[start:][::-1], text[start:][::-1])
        at = len("".join([*old_lines[:first], old[:start]]).encode())
        replaced = len(old[start : len(old) - end].encode())
        edits.append(Edit(at, at + replaced, text[start : len(text) - end]))
    return edits


def _common_length(old: Sequence[str], new: Sequence[str]) -> int:
    """Return the length of the common beginning of two texts or lists of lines."""
    pairs = zip(old, new, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))


def dotted_name(node: cst.BaseExpression) -> str:
    """Return a dotted name as text, without the arguments that it is called with; empty if it is something else."""
    match node:
        case cst.Name(value=name):
            return name
        case cst.Attribute(value=owner, attr=attribute):
            return f"{dotted_name(owner)}.{attribute.value}" if dotted_name(owner) else ""
        case cst.Call(func=function):
            return dotted_name(function)
    return ""


def inner_blocks(statement: cst.CSTNode) -> Iterator[Block]:
    """Yield the blocks within a compound statement, except those of functions and classes."""
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        return
    for part in statement.children:
        if isinstance(part, cst.BaseSuite):
            yield part.body
        elif isinstance(part, _CLAUSES):
            yield from inner_blocks(part)


def small_statements(block: Block) -> Iterator[cst.CSTNode]:
    """Yield the small statements of a block and of the blocks within, in order."""
    for statement in block:
        if isinstance(statement, cst.SimpleStatementLine):
            yield from statement.body
        elif isinstance(statement, cst.BaseSmallStatement):
            yield statement
        else:
            for inner in inner_blocks(statement):
                yield from small_statements(inner)


def stored_name(statement: cst.CSTNode) -> cst.Name | None:
    """Return the one plain name that an assignment binds, annotated or not; None if it is anything else."""
    match statement:
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(lpar=[]) as name)]):
            return name
        case cst.AnnAssign(target=cst.Name(lpar=[]) as name, value=value) if value is not None:
            return name
    return None


def parse_annotation(text: str) -> cst.BaseExpression | None:
    """Return a quoted annotation's expression, None if it can't be parsed."""
    try:
        return cst.parse_expression(text)
    except (cst.ParserSyntaxError, ValueError):
        return None
