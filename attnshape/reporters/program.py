"""The summary of a program's attention, as text for people."""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.model.formatting import format_bytes, pluralize
from attnshape.model.program import AttentionSummary, CapturedTensor, ProgramSummary, UncalledAttention
from attnshape.reporters.escaping import visible
from attnshape.reporters.terminal import StyledLine, fold_command, render_lines, styled
from attnshape.runtime.files import display_path

_MOST_SIZES = 4
"""The most sets of shapes that are shown of one attention."""


def program_text(summary: ProgramSummary, width: int, color: bool) -> str:
    """Return the summary as text: for each attention where it is, how often it ran, its sizes and its scores."""
    lines: list[StyledLine] = []
    calls = sum(one.captured.calls for one in summary.attentions)
    if summary.attentions:
        count = pluralize(len(summary.attentions), "attention")
        lines += styled(f"attnshape: {count} in {pluralize(calls, 'call')}", width, "bold")
    else:
        lines += styled("attnshape: no call of a module with attention was seen", width, "bold")
    for one in summary.attentions:
        lines += _attention(one, width)
    for uncalled in summary.uncalled:
        lines += styled(visible(_uncalled(uncalled)), width)
    for note in summary.notes:
        lines += styled(visible(f"note: {note}"), width)
    return render_lines(lines, color)


def _attention(one: AttentionSummary, width: int) -> Iterator[StyledLine]:
    captured = one.captured
    parts = [
        f"{display_path(captured.file)}:{captured.line} {captured.name}",
        f"{pluralize(captured.calls, 'call')} of {pluralize(captured.modules, 'module')}",
        "  ".join(f"{name}={size}" for name, size in one.sizes.items()) or _shapes(one),
    ]
    if one.scores_bytes is not None:
        kept = "" if one.are_scores_kept else ", not materialised"
        parts.append(f"scores {format_bytes(one.scores_bytes)}{kept}")
    if captured.autocast:
        parts.append(f"autocast {captured.autocast}")
    if captured.recomputed:
        parts.append(f"{pluralize(captured.recomputed, 'more call')} in backward passes")
    yield from styled(visible(" · ".join(parts)), width, "bold")
    if len(captured.sizes) > 1:
        yield from styled(visible(f"  shapes: {_sets_of_shapes(one)}"), width, hang=4)
    if one.command:
        for line in fold_command(visible(one.command), max(width - 2, 20)):
            yield StyledLine(f"  {line}")
    if one.why_not:
        yield from styled(visible(f"  not verified: {one.why_not}"), width, hang=4)
    else:
        yield from styled(
            f"  verified: a clean process runs it at {one.verified_at} sets of sizes", width, "dim", hang=4
        )


def _shapes(one: AttentionSummary) -> str:
    tensors = {name: value for name, value in one.captured.arguments.items() if isinstance(value, CapturedTensor)}
    return ", ".join(f"{name} {_shape(value.shape)}" for name, value in tensors.items())


def _sets_of_shapes(one: AttentionSummary) -> str:
    """Return the sets of shapes, the most frequent first; of tensors with the same shape in all sets, none."""
    captured = one.captured
    names = dict.fromkeys(name for seen in captured.sizes for name in seen.shapes)
    varying = [name for name in names if len({seen.shapes.get(name) for seen in captured.sizes}) > 1]
    ordered = sorted(captured.sizes, key=lambda seen: -seen.calls)
    texts = [
        ", ".join(f"{name} {_shape(seen.shapes[name])}" for name in varying if name in seen.shapes)
        + f" ({seen.calls:,}×)"
        for seen in ordered[:_MOST_SIZES]
    ]
    more = len(ordered) - len(texts) + captured.more_sizes
    return "; ".join(texts) + (f"; and {pluralize(more, 'other set')}" if more else "")


def _shape(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "scalar"


def _uncalled(one: UncalledAttention) -> str:
    modules = pluralize(one.modules, "module")
    return f"{display_path(one.file)}:{one.line} {one.name}: {modules} constructed, no call seen"
