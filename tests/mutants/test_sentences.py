"""Every sentence that a rule can verify is listed, with mutants that must remove it."""

import ast
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

from attnshape.checks import rules
from tests.mutants.cases import PAIRS, UNFOUND
from tests.mutants.sentences import SENTENCES, is_listed

MODULES = sorted(Path(rules.__file__).parent.rglob("*.py"))
PLACEHOLDER = "half"
"""Stands for what is only known in a run: a word, and the name of a rotation's layout too."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def sentences_in(source: str) -> Iterator[str]:
    """Yield the sentences of every `Verification` that a module constructs; those without a text aren't reported."""
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, Function)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Verification":
            around = [function for function in functions if node in ast.walk(function)]
            yield from filter(None, texts(node.args[0], [*around[::-1], tree]))


def texts(node: ast.expr, scopes: list[ast.AST]) -> list[str]:
    """Return the texts that an expression can have, by the assignments in the scopes, the innermost one first."""
    match node:
        case ast.Constant(value=str(text)):
            return [text]
        case ast.JoinedStr(values=parts):
            return ["".join(each) for each in product(*(texts(part, scopes) for part in parts))]
        case ast.FormattedValue(value=value):
            return texts(value, scopes)
        case ast.IfExp(body=body, orelse=orelse):
            return [*texts(body, scopes), *texts(orelse, scopes)]
        case ast.Name(id=name):
            assigned = next(filter(None, (list(assignments(scope, name)) for scope in scopes)), [])
            return [text for value in assigned for text in texts(value, scopes)] or [PLACEHOLDER]
    return [PLACEHOLDER]


def assignments(scope: ast.AST, name: str) -> Iterator[ast.expr]:
    """Yield what a scope assigns to a name."""
    for node in ast.walk(scope):
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Name) and target.id == name:
                yield node.value
            elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                pairs = zip(target.elts, node.value.elts, strict=True)
                yield from (value for one, value in pairs if isinstance(one, ast.Name) and one.id == name)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: "-".join(path.relative_to(MODULES[0].parent).parts))
def test_every_sentence_of_a_rule_is_listed(module: Path) -> None:
    found = list(sentences_in(module.read_text(encoding="utf-8")))
    assert PLACEHOLDER not in found, "a sentence must be written where it is verified"
    assert [text for text in found if not is_listed(text)] == []


def test_sentences_are_found_in_source() -> None:
    source = """
FIRST = "one"
def check(name, holds):
    rest, other = f" of {name}", "no"
    yield Verification(f"{FIRST}{rest if holds else ''}", ())
    yield Verification(name)
"""
    assert list(sentences_in(source)) == ["one of half", "one", "half"]


@pytest.mark.parametrize(("sentence", "mutants"), SENTENCES.items())
def test_every_sentence_has_five_mutants(sentence: str, mutants: tuple[str, ...]) -> None:
    assert len(set(mutants)) >= 5
    assert set(mutants) <= {str(pair) for pair in (*PAIRS, *UNFOUND)}
