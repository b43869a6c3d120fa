"""Reads a snapshot back, strictly: what isn't as `write_snapshot` writes it is refused by file and line."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from attnshape.comparing.cells import WORD, split, unquoted
from attnshape.comparing.outline import INPUT, Outline, OutlineStep, Result, Tensor, Turns
from attnshape.comparing.snapshot import (
    BY_USE,
    CONSTANT,
    FIRST_LINE,
    NAMES,
    NOT_CONTIGUOUS,
    NOTHING,
    PARAMETER,
    RETURNS,
    UNITS,
    UNSEEN,
    VERBS,
)
from attnshape.errors import AttnshapeError
from attnshape.model import Reference, StorageKind

_AGAIN = "write it anew: pytest --shapes-update"
_STEP = re.compile(r"(\d{1,9})(?:\[(\d{1,9})\])?")
_NUMBER = r"-?\d{1,18}"
"""What fits into 64 bits."""
_SIZE = re.compile(rf"({WORD})=({_NUMBER})(?=\s|$)")
_TURNS = re.compile(rf"×({WORD})=({_NUMBER})(?=\s|$)")
_BYTES = re.compile(rf"new ({_NUMBER}) ({'|'.join(unit for unit, _ in UNITS)})")
_KINDS: dict[str, StorageKind] = {verb: kind for kind, verb in VERBS.items()}


_FAILS = "fails at: "


class _LineError(Exception):
    """What is wrong with a line."""


def is_snapshot(text: str) -> bool:
    """Say whether a text means to be a snapshot, of this version or another."""
    return text.startswith(FIRST_LINE.rpartition(" ")[0])


def read_snapshot(text: str, name: str = "the text") -> Outline:
    """Return the outline that `write_snapshot` wrote. Raises AttnshapeError, with file and line, where it is none."""
    lines = _Lines(text)
    try:
        return _outline(lines)
    except (_LineError, ValueError, RecursionError) as error:
        raise AttnshapeError(f"{name}:{lines.number}: this is no snapshot: {error}", _AGAIN) from None


class _Lines:
    """The lines of a text, one after the other."""

    def __init__(self, text: str) -> None:
        self._lines = text.split("\n")
        self.number = 0

    def next(self) -> str:
        self.number += 1
        return self._lines[self.number - 1].rstrip("\r") if self.number <= len(self._lines) else ""

    def after(self, start: str) -> str:
        text = self.next()
        if not text.startswith(start):
            raise _LineError(f"expected {start.strip()!r} first, found {text[:40]!r}")
        return text[len(start) :].strip()

    def rest(self) -> Iterator[str]:
        while self.number < len(self._lines):
            yield self.next()


def _outline(lines: _Lines) -> Outline:
    first = lines.next().rstrip()
    if first != FIRST_LINE:
        raise _LineError(f"expected {FIRST_LINE!r}, found {first[:40]!r}")
    target = unquoted(lines.after("target:"))
    sizes = {unquoted(letter): int(number) for letter, number in _all(_SIZE, lines.after("sizes:"))}
    lines.after("")
    _refuse_other_columns(lines.next())
    body = _Body()
    for text in lines.rest():
        if not text.strip():
            break
        body.take(_cells(text), lines.number)
    results, failure = _end(lines)
    made = Outline(
        target=target,
        sizes=sizes,
        inputs=tuple(body.inputs),
        steps=tuple(replace(step, outputs=tuple(outputs)) for step, outputs in body.steps),
        results=tuple(result for result, _ in results),
        failure=failure,
    )
    for result, number in results:
        lines.number = number
        _refuse_dangling([result.of], made)
    for step, number in zip(made.steps, body.numbers, strict=True):
        lines.number = number
        _refuse_dangling([*step.uses, *(one.of for one in step.outputs if one.of is not None)], made)
    return made


class _Body:
    """The inputs and the steps, as the lines come: those without a number are inputs at first, then outputs."""

    def __init__(self) -> None:
        self.inputs: list[OutlineStep] = []
        self.steps: list[tuple[OutlineStep, list[Tensor]]] = []
        self.numbers: list[int] = []
        """The steps' lines."""
        self._has_one = False

    def take(self, cells: list[str], number: int) -> None:
        if not cells[0]:
            self._take_tensor(_tensor(cells))
            return
        if cells[0] != str(len(self.steps) + 1):
            raise _LineError(f"expected step {len(self.steps) + 1}, found {cells[0][:20]!r}")
        self._has_one = bool(cells[5])
        self.steps.append((_step(cells), [_tensor(cells)] if self._has_one else []))
        self.numbers.append(number)

    def _take_tensor(self, tensor: Tensor) -> None:
        if not self.steps:
            name = tensor.name or ""
            self.inputs.append(OutlineStep(index=0, expression=name, operation=INPUT, outputs=(tensor,)))
        elif self._has_one:
            raise _LineError("this line belongs to no step")
        else:
            self.steps[-1][1].append(tensor)


def _refuse_other_columns(text: str) -> None:
    if tuple(split(text)) != NAMES:
        raise _LineError(f"expected the columns {', '.join(NAMES)}")


def _end(lines: _Lines) -> tuple[list[tuple[Result, int]], str | None]:
    """Return what is returned, with the lines that say it, and at which expression the code fails."""
    results: list[tuple[Result, int]] = []
    failure: str | None = None
    nothing = False
    for text in filter(str.strip, lines.rest()):
        if nothing or failure is not None:
            raise _LineError(f"expected nothing more, found {text[:40]!r}")
        if text.startswith(_FAILS):
            failure = unquoted(text.removeprefix(_FAILS).strip())
        elif not results and text.rstrip() == f"{RETURNS} {NOTHING}":
            nothing = True
        elif text.startswith(f"{RETURNS} "):
            results.append((_result(text.removeprefix(RETURNS), [one.name for one, _ in results]), lines.number))
        else:
            raise _LineError(f"expected {RETURNS!r} or {_FAILS.strip()!r}, found {text[:40]!r}")
    if not results and not nothing and failure is None:
        raise _LineError(f"it doesn't say what is returned: expected {RETURNS!r}")
    return results, failure


def _result(text: str, before: list[str]) -> Result:
    cells = split(text)
    if len(cells) != 2:
        raise _LineError(f"expected a name and a reference, found {text.strip()[:40]!r}")
    name = unquoted(cells[0])
    if name in before:
        raise _LineError(f"{name[:40]!r} is returned twice")
    return Result(name, _reference(unquoted(cells[1])))


def _cells(text: str) -> list[str]:
    cells = split(text)
    if len(cells) > len(NAMES):
        raise _LineError(f"expected {len(NAMES)} columns, found {len(cells)}")
    return cells + [""] * (len(NAMES) - len(cells))


def _step(cells: list[str]) -> OutlineStep:
    operation = re.match(rf"({WORD})", unquoted(cells[3]))
    if operation is None:
        raise _LineError("a step has no operation")
    turns = _all(_TURNS, unquoted(cells[3])[operation.end() :])
    return OutlineStep(
        index=int(cells[0]),
        expression=unquoted(cells[2]),
        operation=unquoted(operation[1]),
        uses=tuple(_reference(one) for one in re.findall(rf"{WORD}", unquoted(cells[4]))),
        turns=tuple(Turns(unquoted(expression), int(count)) for expression, count in turns),
        outputs=(),
    )


def _tensor(cells: list[str]) -> Tensor:
    _, name, _, _, _, dtype, signature, shape, stride, storage, formulas = cells
    if not dtype:
        raise _LineError("a tensor has no dtype")
    by_use = name.startswith(BY_USE)
    kind, of, count = _storage(unquoted(storage))
    made = Tensor(
        name=unquoted(name.removeprefix(BY_USE)) if name else None,
        by_use=by_use,
        dtype=unquoted(dtype),
        signature=unquoted(signature),
        shape=_numbers(shape),
        stride=_numbers(stride.removesuffix(NOT_CONTIGUOUS).strip()),
        contiguous=not stride.endswith(NOT_CONTIGUOUS),
        formulas=tuple(unquoted(one) for one in re.findall(WORD, unquoted(formulas))),
        kind=kind,
        of=of,
        bytes=count,
    )
    # sparse tensors have no strides, contiguous ones no formulas
    if len(made.stride) not in (0, len(made.shape)):
        raise _LineError(f"expected as many strides as sizes, found {len(made.stride)} for {len(made.shape)}")
    if len(made.formulas) not in (0, len(made.stride)):
        raise _LineError(f"expected as many formulas as strides, found {len(made.formulas)} for {len(made.stride)}")
    return made


def _numbers(text: str) -> tuple[int, ...]:
    if not re.fullmatch(rf"({_NUMBER}(\s+|$))*", text):
        raise _LineError(f"expected whole numbers, found {text[:40]!r}")
    return tuple(map(int, text.split()))


def _storage(text: str) -> tuple[StorageKind, Reference | None, int]:
    if not text:
        return "new", None, 0
    if new := _BYTES.fullmatch(text):
        count = int(new[1]) * dict(UNITS)[new[2]]
        if abs(count) >= 2**63:
            raise _LineError(f"{text[:40]!r} is more than any memory")
        return "new", None, count
    for verb, kind in _KINDS.items():
        if text.startswith(f"{verb} "):
            of = text.removeprefix(f"{verb} ")
            return kind, None if of == UNSEEN else _reference(of), 0
    raise _LineError(f"expected a storage such as 'new 40 KiB' or 'view of 3', found {text[:40]!r}")


def _reference(text: str) -> Reference:
    if step := _STEP.fullmatch(text):
        return Reference(step=int(step[1]), output=int(step[2] or 0))
    if text == CONSTANT:
        return Reference(constant=True)
    name = text.removeprefix(PARAMETER)
    if not re.fullmatch(WORD, name):
        raise _LineError(f"expected a step's number or a name, found {text[:40]!r}")
    return Reference(input=unquoted(name)) if name == text else Reference(parameter=unquoted(name))


def _all(pattern: re.Pattern[str], text: str) -> list[tuple[str, str]]:
    """Return what each word of a text is by the pattern."""
    if pattern.sub("", text).strip():
        raise _LineError(f"expected NAME=NUMBER, found {pattern.sub('', text).strip()[:40]!r}")
    return [(found[1], found[2]) for found in pattern.finditer(text)]


def _refuse_dangling(references: list[Reference], made: Outline) -> None:
    for one in references:
        if one.step is None:
            continue
        if not 0 < one.step <= len(made.steps) or one.output >= len(made.steps[one.step - 1].outputs):
            raise _LineError(f"it refers to step {one.step}, which isn't there")
