"""Recording takes work in proportion to the source: thousands of operations on one line, in one expression."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnshape.tracing.runner import Runnable, record
from tests.work import calls_made_by


def function_of(path: Path, body: str) -> Callable[..., Any]:
    path.write_text(f"import torch\n\n\ndef f(x):\n    y = {body}\n    return y\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.f


def recorded(function: Callable[..., Any]) -> list[str]:
    raw = record(Runnable(function, (torch.ones(2, 3),)), seed=0)
    assert raw.failure is None and raw.broken is None
    return [step.location.expression if step.location else "" for step in raw.steps]


def test_many_operations_on_one_line_take_linear_work(tmp_path: Path) -> None:
    def work(count: int) -> int:
        function = function_of(
            tmp_path / f"on_one_line_{count}.py", f"torch.stack([{', '.join(['x.relu()'] * count)}])"
        )
        return calls_made_by(lambda: recorded(function))

    work(10)  # what is looked up once in a process
    assert work(400) < 6 * work(100)


def test_a_long_sum_is_parsed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terms = 700  # deeper than a recursive visitor of the tree may go
    path = tmp_path / "long_sum.py"
    function = function_of(path, " + ".join(["x"] * terms))
    parse, parsed = ast.parse, []

    def counting(text: Any, filename: str = "<unknown>", *others: Any, **keywords: Any) -> Any:
        parsed.append(filename)
        return parse(text, filename, *others, **keywords)

    monkeypatch.setattr(ast, "parse", counting)
    expressions = recorded(function)
    assert parsed.count(str(path)) == 1
    assert expressions[:2] == ["x + x", "x + x + x"]
    assert len(expressions) == terms - 1


@pytest.mark.parametrize("operand", [" + x", ".relu()", "[:]"])
def test_long_expressions_are_abbreviated(tmp_path: Path, operand: str) -> None:
    expressions = recorded(function_of(tmp_path / "long_chain.py", "x" + operand * 600))
    assert expressions[0] == f"x{operand}"
    assert expressions[-1] in (f"…{operand}", f"x{operand * 600}")
    assert all(len(expression) <= 2000 for expression in expressions)


def test_a_long_list_is_abbreviated_in_the_middle(tmp_path: Path) -> None:
    (expression,) = recorded(function_of(tmp_path / "long_list.py", f"torch.stack([{', '.join(['x'] * 5000)}])"))
    assert expression.startswith("torch.stack([x, x, ") and expression.endswith(" x, x])") and " … " in expression
    assert len(expression) < 2100


def test_decorators_and_names_are_found_as_before(tmp_path: Path) -> None:
    function = function_of(tmp_path / "short.py", "(x @ x.mT).softmax(-1); z = y.sum()")
    raw = record(Runnable(function, (torch.ones(2, 3),)), seed=0)
    assert [step.outputs[0].name for step in raw.steps] == [None, None, "y", "z"]
