"""The lines above and below a table of differences: what was compared, and what came out as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from attnshape.comparing.difference import Difference, Rename, ResultChange, Side, StepChange
from attnshape.comparing.outline import OutlineStep
from attnshape.dims import ORDER
from attnshape.render.diff_cells import named, words
from attnshape.render.numbers import count, joined, memory
from attnshape.render.summary import Remark
from attnshape.render.text import visible

_ARROW = " → "
_ALL = "output"
"""What is returned where that is one tensor."""


@dataclass(frozen=True)
class Header:
    """By which command what was compared, and the sizes of both sides."""

    command: str
    targets: str
    sizes: tuple[str, ...]


def header(difference: Difference, command: str) -> Header:
    """Return what stands above the table."""
    old, new = difference.old, difference.new
    letters = sorted({**old.sizes, **new.sizes}, key=lambda one: ORDER.get(one, len(ORDER)))
    sizes = tuple(f"{visible(one)}={_size(old.sizes.get(one), new.sizes.get(one))}" for one in letters)
    return Header(visible(command), _both(visible(old.target), visible(new.target)), sizes)


def footer(difference: Difference) -> tuple[Remark, ...]:
    """Return what stands below the table."""
    remarks = [_verdict(difference), Remark(_totals(difference.old, difference.new))]
    if difference.renamed:
        remarks.append(Remark(f"renamed: {', '.join(map(_renamed, difference.renamed))}"))
    moved = [_numbers(change) for change in difference.steps if "moved" in change.changed]
    remarks += [Remark(f"moved: {', '.join(moved)}")] if moved else []
    old, new = _steps(difference, "old"), _steps(difference, "new")
    for change in difference.steps:
        if change.old is not None and change.new is not None and {"uses", "operands"} & set(change.changed):
            remarks.append(Remark(_reads(change.old, change.new, old, new)))
    remarks += [Remark(_returned(change, old, new)) for change in difference.results]
    return (*remarks, *_failures(difference.old, difference.new))


def _verdict(difference: Difference) -> Remark:
    if not difference.kinds:
        rewritten = sum(change.shown for change in (*difference.inputs, *difference.steps))
        but = f"; {count(rewritten, 'step')} only written differently" if rewritten else ""
        return Remark(f"no difference{but}", "good")
    counts = [_counted(difference.inputs, "input"), _counted(difference.steps, "step")]
    counts.append(f"{count(len(difference.results), 'output')} changed" * bool(difference.results))
    parts = [part for part in counts if part]
    return Remark(f"differs in {joined(list(difference.kinds))}{': ' * bool(parts)}{'; '.join(parts)}", "bad")


def _counted(changes: tuple[StepChange, ...], noun: str) -> str:
    counts = Counter(_way(change) for change in changes)
    ways = [(counts[way], way) for way in ("added", "removed", "moved", "changed", "written differently")]
    found = [(number, way) for number, way in ways if number]
    if not found:
        return ""
    first, *others = found
    parts = [f"{count(first[0], noun)} {first[1]}", *(f"{number:,} {way}" for number, way in others)]
    return ", ".join([*parts, f"{counts['']:,} unchanged"] if counts[""] else parts)


def _way(change: StepChange) -> str:
    if change.old is None:
        return "added"
    if change.new is None:
        return "removed"
    if "moved" in change.changed:
        return "moved"
    if change.kinds:
        return "changed"
    return "written differently" if change.shown else ""


def _totals(old: Side, new: Side) -> str:
    before, after = old.totals, new.totals
    return ", ".join(
        (
            f"steps {_both(f'{before.steps:,}', f'{after.steps:,}')}",
            f"new storage {_both(memory(before.new_bytes), memory(after.new_bytes))}",
            f"views {_both(f'{before.views:,}', f'{after.views:,}')}",
        )
    )


def _numbers(change: StepChange) -> str:
    return f"{change.old.index if change.old else ''}→{change.new.index if change.new else ''}"


def _reads(old: OutlineStep, new: OutlineStep, before: list[OutlineStep], after: list[OutlineStep]) -> str:
    reads, read = (
        ", ".join(words(one, steps) for one in step.uses) or "nothing" for step, steps in ((new, after), (old, before))
    )
    return f"step {new.index} reads {reads}; the old step {old.index} reads {read}"


def _returned(change: ResultChange, before: list[OutlineStep], after: list[OutlineStep]) -> str:
    old = named(change.old.of, before) if change.old is not None else ""
    new = named(change.new.of, after) if change.new is not None else ""
    if change.old is None or change.new is None:
        way, one = ("came", change.new) if change.old is None else ("went", change.old)
        return f"{visible(one.name) if one is not None else ''} {way}: {new or old}"
    name = visible(change.new.name)
    if change.old.name != change.new.name:
        return f"{visible(change.old.name)} is {name} now: {new}"
    return f"{'returns' if name == _ALL else f'{name} is'} {old}{_ARROW}{new}"


def _failures(old: Side, new: Side) -> Iterator[Remark]:
    for side, name, other in ((old, "old", new), (new, "new", old)):
        if side.failure is not None:
            only = "" if other.failure is not None else ", the other doesn't"
            yield Remark(f"✗ the {name} one fails at {visible(side.failure) or 'a step'}{only}", "bad")


def _renamed(rename: Rename) -> str:
    return f"{visible(rename.old)}{_ARROW}{visible(rename.new)}"


def _both(old: str, new: str) -> str:
    return new if old == new else f"{old}{_ARROW}{new}"


def _size(old: int | None, new: int | None) -> str:
    if old is None or new is None:
        return f"{new} (new only)" if old is None else f"{old} (old only)"
    return _both(str(old), str(new))


def _steps(difference: Difference, side: str) -> list[OutlineStep]:
    found = [getattr(change, side) for change in difference.steps]
    return sorted((one for one in found if one is not None), key=lambda one: one.index)
