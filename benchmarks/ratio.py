"""Formats timings as a table of medians, minima and ratios; nothing here runs or measures anything."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median


@dataclass(frozen=True)
class Budget:
    """The limit of a row: `limit` times the baseline `against`, or `limit` seconds if that is None."""

    limit: float
    against: str | None = None


@dataclass(frozen=True)
class Row:
    """The timings of one task in seconds, and those of its baselines by name."""

    label: str
    seconds: Sequence[float]
    baselines: Mapping[str, Sequence[float]] = field(default_factory=dict)
    budget: Budget | None = None


@dataclass(frozen=True)
class Table:
    """The rows of one measurement, and the reason for each task that couldn't be measured."""

    title: str
    rows: Sequence[Row]
    missing: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Figures:
    """What each tool says of each subject, and the reason for each tool that says nothing."""

    title: str
    subjects: Sequence[str]
    rows: Mapping[str, Sequence[str]]
    missing: Mapping[str, str] = field(default_factory=dict)


def paired_ratio(seconds: Sequence[float], baseline: Sequence[float]) -> float:
    """Return the median of the ratios of each round, in which a slowdown of the machine affects both timings.

    >>> paired_ratio([1.0, 2.0, 9.0], [1.0, 1.0, 3.0])
    2.0
    """
    if len(seconds) != len(baseline):
        raise ValueError(f"{len(seconds)} timings can't be paired with {len(baseline)}")
    return median(own / other for own, other in zip(seconds, baseline, strict=True))


def least_ratio(seconds: Sequence[float], baseline: Sequence[float]) -> float:
    """Return the ratio of the minima.

    >>> least_ratio([3.0, 4.0], [2.0, 1.5])
    2.0
    """
    return min(seconds) / min(baseline)


def duration(seconds: float) -> str:
    """Return a time in a suitable unit.

    >>> duration(1.234), duration(0.0456), duration(0.000012)
    ('1.234 s', '45.6 ms', '12.0 µs')
    """
    if seconds >= 1:
        return f"{seconds:.3f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def factor(ratio: float) -> str:
    """Return a ratio with at least three digits.

    >>> factor(1.0449), factor(23.96), factor(160.2)
    ('1.04', '24.0', '160')
    """
    return f"{ratio:.2f}" if ratio < 10 else f"{ratio:.1f}" if ratio < 100 else f"{ratio:.0f}"


def verdict(row: Row) -> str:
    """Return the row's budget and whether the median keeps it, or an empty string without a budget."""
    if row.budget is None:
        return ""
    if row.budget.against is None:
        value, limit = median(row.seconds), duration(row.budget.limit)
    else:
        baseline = row.baselines.get(row.budget.against)
        limit = f"{row.budget.limit:.2f} × {row.budget.against}"
        if baseline is None:
            return f"≤ {limit}: not measured"
        value = paired_ratio(row.seconds, baseline)
    return f"≤ {limit}: {'kept' if value <= row.budget.limit else 'MISSED'}"


def render(table: Table | Figures) -> str:
    """Return the table as aligned text; of timings the ratio of the medians and, in parentheses, that of the minima."""
    cells = _timings(table) if isinstance(table, Table) else _figures(table)
    widths = [max(len(line[place]) for line in cells) for place in range(len(cells[0]))]
    lines = [table.title]
    for first, *numbers, last in cells:
        middle = (cell.rjust(width) for cell, width in zip(numbers, widths[1:-1], strict=True))
        lines.append("  ".join(["", first.ljust(widths[0]), *middle, last]).rstrip())
    lines += [f"  {label}: not measured ({reason})" for label, reason in table.missing.items()]
    return "\n".join(lines)


def _figures(table: Figures) -> list[list[str]]:
    return [["", *table.subjects, ""], *([label, *figures, ""] for label, figures in table.rows.items())]


def _timings(table: Table) -> list[list[str]]:
    columns = list(dict.fromkeys(name for row in table.rows for name in row.baselines))
    heading = "budget" if any(row.budget for row in table.rows) else ""
    cells = [["", "median", "min", *(f"× {name}" for name in columns), heading]]
    for row in table.rows:
        ratios = [
            f"{factor(paired_ratio(row.seconds, row.baselines[name]))}"
            f" ({factor(least_ratio(row.seconds, row.baselines[name]))})"
            if name in row.baselines
            else ""
            for name in columns
        ]
        cells.append([row.label, duration(median(row.seconds)), duration(min(row.seconds)), *ratios, verdict(row)])
    return cells
