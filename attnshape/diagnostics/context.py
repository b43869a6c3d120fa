"""The failed call and its operands, as the diagnoses read them."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch.utils._pytree import tree_leaves

from attnshape.errors import exception_text
from attnshape.inference.assemble import SimilarFailures
from attnshape.model.trace import NamedTensor, Step, TensorRecord
from attnshape.tracing.operations import base_name
from attnshape.tracing.raw import RawCall, RawFailure, RawOperand, TensorSlot

_LONGEST_NAME = 60
RESULT_OF = "the result of step"
"""The name of an operand that has neither a name nor an expression of its own begins so."""


@dataclass(frozen=True)
class FailedOperand:
    """One operand of the failed call."""

    position: int
    """Its position among the operands."""
    name: str
    text: str | None
    """Its text in the failing expression; None if it doesn't appear there."""
    record: TensorRecord
    min_and_max: tuple[float, float] | None = None
    """The smallest and the largest element, where they were recorded."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return self.record.shape

    @property
    def rank(self) -> int:
        """The number of its axes."""
        return len(self.record.shape)

    @property
    def symbols(self) -> list[str]:
        """The symbols of its axes, or their numbers."""
        return [axis.expression for axis in self.record.axes]


@dataclass(frozen=True)
class FailureContext:
    """A failure with everything that is known about it."""

    failure: RawFailure
    operands: tuple[FailedOperand, ...]
    steps: tuple[Step, ...]
    similar: SimilarFailures
    """The small runs that failed in the same way."""
    device: str
    """The kind of the run's device."""
    dtype: str
    """The run's default floating-point dtype."""

    @property
    def message(self) -> str:
        """The library's error message."""
        return exception_text(self.failure.error)

    @cached_property
    def operation(self) -> str:
        """The operation's short name: `matmul`, and `masked_fill` for `masked_fill_` too."""
        return base_name(self.failure.operation or "")

    @property
    def call(self) -> RawCall | None:
        """The failed call; None if no call failed."""
        return self.failure.call

    @cached_property
    def expression(self) -> str:
        """The failing expression on one line; empty if it can't be put on one."""
        place = self.failure.location
        return _one_line(place.expression) if place is not None else ""

    def argument(self, position: int | None, *keywords: str) -> Any:
        """Return the argument at a position or under one of the keywords; None if it wasn't passed."""
        if self.call is None:
            return None
        if position is not None and position < len(self.call.args):
            return self.call.args[position]
        return next((self.call.keywords[word] for word in keywords if word in self.call.keywords), None)

    def operand(self, position: int | None, *keywords: str) -> FailedOperand | None:
        """Return the operand at a position or under one of the keywords."""
        return self.operand_of(self.argument(position, *keywords))

    def operand_of(self, argument: object) -> FailedOperand | None:
        """Return the operand that an argument, or a part of one, stands for; None if it isn't a tensor."""
        return self.operands[argument.operand] if isinstance(argument, TensorSlot) else None

    def integers(self, start: int, *keywords: str) -> list[tuple[str, int]] | None:
        """Return the formulas and values of the call's `integer_arguments`; None if it has other arguments there."""
        if self.call is None:
            return None
        try:
            numbers = integer_arguments(self.call, start, *keywords)
        except TypeError:
            return None

        def formula(place: int, number: int) -> str:
            return self.formula(lambda call: integer_arguments(call, start, *keywords)[place], number)

        return [(formula(place, number), number) for place, number in enumerate(numbers)]

    def formula(self, read: Callable[[RawCall], int], actual: int) -> str:
        """Return the formula of a number in the call, or the number itself if the small runs don't give one.

        `read` reads the number from a call; `actual` is the number in the user's run.
        """
        calls = [failure.call for failure in self.similar.failures]
        try:
            values = [read(call) for call in calls if call is not None]
        except (IndexError, KeyError, TypeError, AttributeError):
            return str(actual)
        if len(values) != len(calls) or not values or actual <= 0:
            return str(actual)
        return self.similar.formula(values, actual).text


def failure_context(
    similar: SimilarFailures, inputs: Sequence[NamedTensor], steps: Sequence[Step], device: str, dtype: str
) -> FailureContext:
    """Return the context of a failure, with its operands named as the source names them."""
    failure = similar.actual
    expression = _one_line(failure.location.expression) if failure.location is not None else ""
    operands = []
    for position, (raw, record) in enumerate(zip(failure.operands, similar.operands(inputs, steps), strict=True)):
        name = _name(raw, record, failure, steps, expression) or f"operand {position + 1}"
        of = raw.tensor.of
        # inside a library, only an input or a keyword argument surely has this name in the user's own line
        certain = failure.own or (of is not None and of.input == name) or name == _passed_variable(raw, expression)
        texts = (text for text in (name, f"self.{name}") if certain and _occurs_once(text, expression))
        operands.append(FailedOperand(position, name, next(texts, None), record, raw.min_and_max))
    return FailureContext(failure, tuple(operands), tuple(steps), similar, device, dtype)


def _name(
    operand: RawOperand, record: TensorRecord, failure: RawFailure, steps: Sequence[Step], expression: str
) -> str | None:
    passed = _passed_variable(operand, expression) if not failure.own else None
    if passed is not None or operand.name is not None:
        return passed or operand.name
    of = operand.tensor.of
    step = steps[of.step - 1] if of is not None and of.step is not None else None
    if of is None or step is None or step.outputs[of.output].tensor is not record:
        step = None
    elif len(step.outputs) == 1:
        text = _one_line(step.expression)
        if text and text != expression and len(text) <= _LONGEST_NAME and _occurs_once(text, expression):
            return text
    if operand.parameter is not None:
        return _passed_variable(operand, expression) or operand.parameter
    return f"{RESULT_OF} {step.index}" if step is not None else None


def _passed_variable(operand: RawOperand, expression: str) -> str | None:
    """Return the variable that the expression passes as the keyword argument that an operand was."""
    tree = parse_expression(expression) if operand.parameter is not None else None
    for keyword in tree.keywords if isinstance(tree, ast.Call) else ():
        if keyword.arg == operand.parameter and isinstance(keyword.value, ast.Name):
            return keyword.value.id
    return None


def _occurs_once(text: str, expression: str) -> bool:
    return len(re.findall(rf"(?<![\w.]){re.escape(text)}(?![\w(])", expression)) == 1


def _one_line(expression: str) -> str:
    """Return an expression without comments and line breaks; empty if it can't be tokenized."""
    lines = expression.split("\n")
    try:
        # inside brackets, line breaks and indentation don't matter
        for token in tokenize.generate_tokens(io.StringIO(f"(\n{expression}\n)").readline):
            if token.type == tokenize.COMMENT:
                row, column = token.start
                lines[row - 2] = lines[row - 2][:column]
    except (tokenize.TokenError, SyntaxError):
        return ""
    if len(lines) == 1:
        return lines[0].strip()
    return re.sub(r"(?<=[(\[]) | (?=[)\]])", "", " ".join(" ".join(lines).split()).replace(", )", ")"))


def parse_expression(expression: str) -> ast.expr | None:
    """Return an expression's syntax tree, whose columns count characters; None if it can't be parsed."""
    if not expression.isascii():
        return None
    try:
        return ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def flat_integers(values: object) -> list[int]:
    """Return the integers in a nested tuple or list. Raises TypeError if it contains anything else.

    >>> flat_integers(((2, 3),))
    [2, 3]
    """
    leaves = tree_leaves(values)
    if any(type(leaf) is not int for leaf in leaves):
        raise TypeError(values)
    return leaves


def integer_arguments(call: RawCall, start: int, *keywords: str) -> list[int]:
    """Return the integers among a call's arguments from a position on, else under the keywords.

    Raises TypeError if there are other arguments.
    """
    return flat_integers(call.args[start:] or [call.keywords[word] for word in keywords if word in call.keywords])
