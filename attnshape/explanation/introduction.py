"""The beginning and the end of the article: what the run was, what goes in, and what the size symbols mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from attnshape.dims.symbols import SYMBOLS_BY_NAME
from attnshape.explanation.sentences import explain
from attnshape.explanation.writing import SectionWriter, quoted
from attnshape.model.explanation import Paragraph, Part, Section
from attnshape.model.formatting import join_words, pluralize
from attnshape.model.trace import Step, Trace

_RANGE = " … "
"""What stands between the first and the last module of a loop."""
_MOST = 200
"""How many steps that belong to no other section are explained one by one."""


def introduction(trace: Trace, observed_at: Mapping[str, int], mode: str | None) -> Part:
    """Return what the run was and what goes in.

    Args:
        trace: The trace.
        observed_at: The sizes of the run in which numbers were observed; empty if there was none.
        mode: The mode in which its modules ran, `training` or `evaluation`; None if there are none.
    """
    return Part(
        title="The run",
        paragraphs=tuple(_run(trace, observed_at, mode)),
        sections=tuple(section for section in (_inputs(trace),) if section is not None),
    )


def _run(trace: Trace, observed_at: Mapping[str, int], mode: str | None) -> list[Paragraph]:
    sizes = {symbol: size.size for symbol, size in trace.sizes.items()}
    in_mode = f"in {mode} mode, " if mode is not None else ""
    parameters = " and parameters" if trace.cost and trace.cost.parameters.value else ""
    texts = [
        f"{quoted(trace.target)} ran on {trace.device} in {trace.dtype}, {in_mode}at {_sizes(sizes)}, with "
        f"random inputs{parameters} from the seed `{trace.seed}`.",
        _verification(trace),
    ]
    if not observed_at:
        texts.append("No numbers were observed: the text rests on shapes and formulas alone.")
    elif dict(observed_at) == sizes:
        run = "this run" if trace.device == "cpu" else "such a run on the CPU"
        texts.append(
            f"Spreads, weights and shares of the text were observed in {run}, before any training; trained "
            "parameters give other ones. Counts follow from the shapes of this run, or from the formulas beside them."
        )
    else:
        texts.append(
            f"Spreads, weights and shares of the text were observed in a smaller run, at {_sizes(observed_at)}, "
            "before any training. Counts follow from the shapes at the sizes above, or from the formulas beside them."
        )
    return [Paragraph("note", text) for text in [" ".join(texts), *trace.notes]]


def _sizes(numbers: Mapping[str, int]) -> str:
    return ", ".join(f"{symbol}={size}" for symbol, size in numbers.items()) or "sizes of its own"


def _verification(trace: Trace) -> str:
    if trace.verified_at < 2:
        return "It ran at these sizes only, so that the signatures are matched to them, not verified."
    return f"The signatures in the tables were verified at {pluralize(trace.verified_at, 'set')} of sizes."


def _inputs(trace: Trace) -> Section | None:
    text = SectionWriter("inputs", "What goes in")
    text.table(
        ("input", "signature", "shape"),
        [
            (quoted(named.name or "an input"), f"`{named.tensor.signature}`", " ".join(map(str, named.tensor.shape)))
            for named in trace.inputs
        ],
    )
    return text.section()


def symbols(trace: Trace) -> Section | None:
    """Return the section about the size symbols of a trace."""
    text = SectionWriter("symbols", "The size symbols")
    rows = []
    for symbol, size in trace.sizes.items():
        known = SYMBOLS_BY_NAME.get(symbol)
        meaning = known.meaning if known is not None else "a size of this code"
        follows = f" = `{size.expression}`" if size.expression else ""
        rows.append((f"`{symbol}`", f"{size.size}{follows}", meaning))
    text.table(("symbol", "size", "meaning"), rows)
    return text.section()


def other_steps(trace: Trace, steps: tuple[Step, ...], has_attention: bool) -> Part | None:
    """Return what is known of steps that belong to no attention; None if there are none."""
    if not steps:
        return None
    text = SectionWriter("steps", "The steps", steps)
    text.table(("step", "what it does"), [(str(step.index), explain(trace, step)) for step in steps[:_MOST]])
    if len(steps) > _MOST:
        text.note(f"{pluralize(len(steps) - _MOST, 'more step')} aren't listed; `attnshape trace --explain` has all.")
    section = text.section()
    sentences = (
        ()
        if has_attention
        else (
            Paragraph(
                "note",
                "No attention was recognised in this code: no softmax was found whose results, made of products of "
                "queries and keys, weight any values. What is known of each step is what it computes.",
            ),
        )
    )
    title = "The other steps" if has_attention else "What the code does"
    return Part(title=title, paragraphs=sentences, sections=(section,) if section is not None else ())


def further_steps(trace: Trace, steps: Iterable[Step]) -> Section | None:
    """Return what is known of steps of an attention that no other section has; None if there are none."""
    rest = sorted(steps, key=lambda step: step.index)
    text = SectionWriter("further", "The other steps of this attention", rest)
    text.table(("step", "what it does"), [(str(step.index), explain(trace, step)) for step in rest[:_MOST]])
    return text.section()


def part_title(number: int, count: int, modules: Sequence[str]) -> str:
    """Return the title of the part about one of several attentions."""
    if count == 1:
        return "The attention"
    return f"Attention {number} of {count}{f', in {_paths(modules[:1])}' if modules else ''}"


def shared_by(modules: Sequence[str]) -> Iterator[Paragraph]:
    """Yield which modules compute the same attention, if several do."""
    if len(modules) > 1 or any(_RANGE in module for module in modules):
        text = f"These lines run in {_paths(modules)}. The numbers observed are those of the first of them."
        yield Paragraph("note", text)


def _paths(modules: Sequence[str]) -> str:
    return join_words([_RANGE.join(map(quoted, module.split(_RANGE))) for module in modules])
