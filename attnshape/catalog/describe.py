"""What a mechanism is, read from its file's text: nothing is imported or run."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass
from pathlib import Path

from attnshape.catalog.registry import module_name

MECHANISMS = Path(__file__).parent / "mechanisms"


@dataclass(frozen=True)
class CaseDescription:
    """One way to call a mechanism: the sizes that it takes, in order, and its options."""

    name: str
    summary: str
    sizes: tuple[str, ...]
    options: tuple[str, ...]


@dataclass(frozen=True)
class Description:
    """One mechanism: what it computes, who published it, how it can be called, and its code."""

    name: str
    summary: str
    formula: str
    source: str
    cases: tuple[CaseDescription, ...]
    code: str


def describe(name: str) -> Description:
    """Describe a mechanism of the catalog. Raises AttnshapeError for an unknown name.

    >>> description = describe("multi-head")
    >>> [(case.name, " ".join(case.sizes)) for case in description.cases]
    [('self_attention', 'B H L D'), ('cross_attention', 'B H Lq Lk D')]
    """
    code = (MECHANISMS / f"{module_name(name)}.py").read_text(encoding="utf-8")
    tree = ast.parse(code)
    doc = ast.get_docstring(tree) or ""
    return Description(
        name=name,
        summary=_first_line(doc),
        formula=_section(doc, "Formula:"),
        source=_section(doc, "Source:"),
        cases=tuple(_case(node) for node in tree.body if isinstance(node, ast.FunctionDef) and _is_case(node)),
        code=code,
    )


def _is_case(function: ast.FunctionDef) -> bool:
    return isinstance(function.returns, ast.Name) and function.returns.id == "Case" and function.name[0] != "_"


def _case(function: ast.FunctionDef) -> CaseDescription:
    return CaseDescription(
        name=function.name,
        summary=_first_line(ast.get_docstring(function) or ""),
        sizes=tuple(parameter.arg for parameter in function.args.args),
        options=tuple(parameter.arg for parameter in function.args.kwonlyargs),
    )


def _first_line(doc: str) -> str:
    return doc.partition("\n")[0]


def _section(doc: str, heading: str) -> str:
    """Return the indented lines below a heading."""
    lines = doc.partition(f"\n{heading}\n")[2].splitlines()
    end = next((place for place, line in enumerate(lines) if line and not line[0].isspace()), len(lines))
    return textwrap.dedent("\n".join(lines[:end])).strip()
