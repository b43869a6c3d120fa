"""A source file's syntax tree: its functions with their places, their parameters, and the stores to plain names."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, CodeSpan, MetadataWrapper

from attnshape.annotate.source import Source
from attnshape.errors import AttnshapeError
from attnshape.paths import display_path
from attnshape.variables.forms import Form, FunctionForms

Block = Sequence[cst.CSTNode]
"""Statements in order: lines, compound statements, or the small statements of one line."""


@dataclass(frozen=True)
class Definition:
    """A function in the source."""

    name: str
    """With the classes and functions around it: `Attention.forward`."""
    line: int
    """Its first, a decorator's where it has one."""
    node: cst.FunctionDef

    @property
    def parameters(self) -> list[cst.Param]:
        """Its parameters in order, but for `*args` and `**kwargs`."""
        given = self.node.params
        return [*given.posonly_params, *given.params, *given.kwonly_params]

    @property
    def decorators(self) -> list[str]:
        """The decorators as they are written, without what they are called with."""
        return [dotted(one.decorator) for one in self.node.decorators]


@dataclass(frozen=True, eq=False)
class Tree:
    """A parsed file."""

    source: Source
    module: cst.Module
    spans: Mapping[cst.CSTNode, CodeSpan]
    definitions: tuple[Definition, ...]

    def start(self, node: cst.CSTNode) -> int:
        """Return the offset of a node's first byte."""
        return self.spans[node].start

    def held(self, known: FunctionForms, name: cst.Name) -> Form | None:
        """Return what is known of the variable that is bound at a name's place."""
        offset = self.start(name)
        for (line, column, bound), form in known.bindings.items():
            if bound == name.value and self.source.offset(line, column) == offset:
                return form
        return None

    def end(self, node: cst.CSTNode) -> int:
        """Return the offset behind a node's last byte."""
        return self.spans[node].start + self.spans[node].length

    def code(self, node: cst.CSTNode) -> str:
        """Return a node's text."""
        return self.source.utf8[self.start(node) : self.end(node)].decode()

    def colon(self, function: cst.FunctionDef) -> int:
        """Return the offset of the colon before a function's body."""
        body = function.body
        behind = body.header if isinstance(body, cst.IndentedBlock) else body.leading_whitespace  # type: ignore[attr-defined]  # one of the two
        return self.start(behind) - 1

    def behind_parameters(self, function: cst.FunctionDef) -> int:
        """Return the offset behind the parenthesis that ends a function's parameters, where it has no result's type."""
        return self.colon(function) - len(self.module.code_for_node(function.whitespace_before_colon).encode())


@functools.lru_cache(maxsize=4)  # a second for a file of some thousand lines
def parse(source: Source) -> Tree:
    """Return a file's syntax tree. Raises AttnshapeError where it can't be parsed."""
    name = display_path(str(source.path))
    try:
        wrapper = MetadataWrapper(cst.parse_module(source.text), unsafe_skip_copy=True)
    except cst.ParserSyntaxError as error:
        raise AttnshapeError(
            f"{name} can't be parsed: line {error.raw_line}: {error.message.splitlines()[0]}",
            "mend it; what Python itself takes may be too new for the parser",
        ) from None
    except (RecursionError, ValueError) as error:
        raise AttnshapeError(f"{name} can't be parsed: {type(error).__name__}", "split the file") from None
    if wrapper.module.code != source.text:
        raise AttnshapeError(
            f"{name} can't be written again byte for byte: its lines end with lone carriage returns",
            "save it with other line ends",
        )
    spans = wrapper.resolve(ByteSpanPositionProvider)
    finder = _Finder(source, spans)
    wrapper.module.visit(finder)
    return Tree(source, wrapper.module, spans, tuple(finder.found))


class _Finder(cst.CSTVisitor):
    """Finds the functions of a file with their full names."""

    def __init__(self, source: Source, spans: Mapping[cst.CSTNode, CodeSpan]) -> None:
        super().__init__()
        self._source, self._spans = source, spans
        self._around: list[str] = []
        self.found: list[Definition] = []

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:  # noqa: N802 - libcst's name
        self._around.append(node.name.value)
        first: cst.CSTNode = node.decorators[0] if node.decorators else node
        line = self._source.line(self._spans[first].start)
        self.found.append(Definition(".".join(self._around), line, node))

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:  # noqa: N802 - libcst's name
        self._around.pop()

    def visit_ClassDef(self, node: cst.ClassDef) -> None:  # noqa: N802 - libcst's name
        self._around.append(node.name.value)

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:  # noqa: N802 - libcst's name
        self._around.pop()


def dotted(node: cst.BaseExpression) -> str:
    """Return a dotted name as text, without what it is called with; nothing where it is something else."""
    match node:
        case cst.Name(value=name):
            return name
        case cst.Attribute(value=owner, attr=attribute):
            return f"{dotted(owner)}.{attribute.value}" if dotted(owner) else ""
        case cst.Call(func=function):
            return dotted(function)
    return ""


def blocks(statement: cst.CSTNode) -> Iterator[Block]:
    """Yield the blocks within a compound statement, but for those of functions and classes."""
    if isinstance(statement, (cst.FunctionDef, cst.ClassDef)):
        return
    for part in statement.children:
        if isinstance(part, (cst.IndentedBlock, cst.SimpleStatementSuite)):
            yield part.body
        elif isinstance(part, (cst.If, cst.Else, cst.ExceptHandler, cst.ExceptStarHandler, cst.Finally, cst.MatchCase)):
            yield from blocks(part)


def small_statements(block: Block) -> Iterator[cst.CSTNode]:
    """Yield the small statements of a block and of the blocks within, in order."""
    for statement in block:
        if isinstance(statement, cst.SimpleStatementLine):
            yield from statement.body
        elif isinstance(statement, cst.BaseSmallStatement):
            yield statement
        else:
            for inner in blocks(statement):
                yield from small_statements(inner)


def stored_name(statement: cst.CSTNode) -> cst.Name | None:
    """Return the one plain name that an assignment binds, annotated or not; None where it is anything else."""
    match statement:
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(lpar=[]) as name)]):
            return name
        case cst.AnnAssign(target=cst.Name(lpar=[]) as name, value=value) if value is not None:
            return name
    return None
