"""The article in numbers: parameters, operations and memory, what costs most, and what of it grows with the length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import prod

from msgspec import UNSET

from attnshape.dims.arithmetic import SIZE, evaluate, parse, symbols
from attnshape.errors import AttnshapeError
from attnshape.explanation.attention import Attention, code_of
from attnshape.explanation.introduction import symbols as symbols_section
from attnshape.explanation.stages import Stage
from attnshape.explanation.writing import SectionWriter, percent_text
from attnshape.model.explanation import Part, Section
from attnshape.model.formatting import format_bytes, format_count, join_words
from attnshape.model.trace import Quantity, Step, TensorRecord, TotalCost, Trace, loops_by_step

_LENGTHS = ("L", "Lq", "Lk", "Lp")
_FAR = 2**30
_GROWTH = {0: "not at all", 1: "linearly", 2: "quadratically"}
_GROUPS: tuple[tuple[str, tuple[Stage, ...]], ...] = (
    ("projections", ("projections",)),
    ("scores", ("scores",)),
    ("scale, mask and what else is added", ("scale", "added")),
    ("softmax and dropout", ("softmax", "dropout")),
    ("context", ("context",)),
    ("what else is done before the products", ("operands",)),
    ("layout and merge", ("heads", "merge")),
    ("output projection", ("output",)),
)


def summary(trace: Trace, attentions: Sequence[Attention]) -> Part:
    """Return parameters, operations, memory, and the size symbols."""
    sections = (_operations(trace, attentions), _parameters(trace), _memory(trace, attentions), symbols_section(trace))
    return Part(title="In numbers", sections=tuple(section for section in sections if section is not None))


def growth(expression: str, sizes: Mapping[str, int]) -> int | None:
    """Return the power of the lengths with which a formula grows; None if it isn't known.

    >>> [growth(text, {"B": 2, "L": 10, "D": 512}) for text in ("4*D*D", "2*B*L*D", "B*L*L+4*B*L*D", "?")]
    [0, 1, 2, None]
    """
    at = [
        _value(expression, {**sizes, **{length: far for length in _LENGTHS if length in sizes}})
        for far in (_FAR, 2 * _FAR)
    ]
    if at[0] is None or at[1] is None or at[0] <= 0:
        return None
    ratio = at[1] / at[0]
    return next((power for power in range(4) if abs(ratio / 2**power - 1) < 1e-3), None)


def _value(expression: str, numbers: Mapping[str, int]) -> float | None:
    try:
        tree = parse(expression, SIZE)
        return float(evaluate(tree, numbers)) if set(symbols(tree)) <= numbers.keys() else None
    except (AttnshapeError, OverflowError):
        return None


def _sizes(trace: Trace) -> dict[str, int]:
    return {symbol: size.size for symbol, size in trace.sizes.items()}


def _grows(trace: Trace, expression: str | None) -> str:
    power = growth(expression, _sizes(trace)) if expression is not None else None
    return _GROWTH.get(power, "faster than quadratically") if power is not None else "unknown"


def _operations(trace: Trace, attentions: Sequence[Attention]) -> Section | None:
    total = trace.cost
    if total is UNSET or total.flops is None or not total.flops.value:
        return None
    text = SectionWriter("operations", "Operations: what costs most")
    rows, left = [], total.flops.value
    for name, steps in _stages(attentions):
        counted = _counted(trace, steps)
        if counted is None or not counted.value:
            continue
        left -= counted.value
        rows.append(_operations_row(trace, text, name, counted, total))
    for step in _costliest(trace) if not attentions else ():
        counted = _counted(trace, [step])
        if counted is not None:
            left -= counted.value
            rows.append(_operations_row(trace, text, f"{step.index} {code_of(step)}", counted, total))
    if rows and left > 0:
        rows.append(_operations_row(trace, text, "the other steps", Quantity(left), total))
    whole, formula = _quantity(text, "FLOPs of the run", total.flops, format_count)
    rows.append(("the whole run", f"{whole}{formula}", "", _grows(trace, total.flops.expression)))
    length = join_words([length for length in _LENGTHS if length in trace.sizes] or ["the length"])
    text.table(("stage", "FLOPs", "share", f"grows with {length}"), rows)
    _crossover(trace, text, total)
    if total.needless is not UNSET and total.attention is not UNSET and total.needless > 0:
        share = text.observed_share("weights that are exactly 0", total.needless, "share of all weights of the run")
        text.note(f"{share} of the weights are exactly 0, because of a mask; their products are computed all the same.")
    text.note("A multiplication and an addition are two operations. Views, transposes and copies take none.")
    return text.section()


_MOST_STEPS = 5
"""How many steps are listed where no attention is known."""


def _costliest(trace: Trace) -> list[Step]:
    """Return the steps that take the most operations, in the order in which they run."""
    known = [(counted.value, step) for step in trace.steps if (counted := _own_cost(trace, step)) is not None]
    most = sorted(known, key=lambda one: -one[0])[:_MOST_STEPS]
    return sorted((step for _, step in most), key=lambda step: step.index)


def _own_cost(trace: Trace, step: Step) -> Quantity | None:
    """Return the operations of a step; None if it takes none, or its parts are steps themselves."""
    counted = _counted(trace, [step]) if step.index not in trace.composites else None
    return counted if counted is not None and counted.value else None


def _stages(attentions: Sequence[Attention]) -> Iterator[tuple[str, tuple[Step, ...]]]:
    """Yield the names of the stages of all attentions, with their steps."""
    for number, attention in enumerate(attentions, 1):
        for name, stages in _GROUPS:
            yield name + (f" of attention {number}" if len(attentions) > 1 else ""), attention.of(*stages)


def _operations_row(
    trace: Trace, text: SectionWriter, name: str, counted: Quantity, total: TotalCost
) -> tuple[str, str, str, str]:
    assert total.flops is not None
    shown, formula = _quantity(text, f"FLOPs of {name}", counted, format_count)
    share = counted.value / total.flops.value
    percent = text.computed(f"share of {name}", share, f"FLOPs of {name} / FLOPs of the run", percent_text(share))
    return name, f"{shown}{formula}", percent, _grows(trace, counted.expression)


def _quantity(text: SectionWriter, name: str, quantity: Quantity, format_: Callable[[int], str]) -> tuple[str, str]:
    """Return a number as text, and its formula with an equals sign if it has one."""
    shown = text.computed(name, quantity.value, quantity.expression or "counted", format_(quantity.value))
    return shown, f" = `{quantity.expression}`" if quantity.expression else ""


def _counted(trace: Trace, steps: Iterable[Step]) -> Quantity | None:
    """Return the operations of steps in all iterations, with a formula where each step has one; None if unknown."""
    loops = loops_by_step(trace.loops)
    value, terms = 0, dict[str, int]()
    has_formula = True
    for step in steps:
        if step.cost is UNSET or step.cost.flops is None:
            return None
        times, around = 1, loops.get(step.index, [])
        for loop in around:
            times *= loop.count
        value += times * step.cost.flops.value
        if not step.cost.flops.value:
            continue
        has_formula = has_formula and step.cost.flops.expression is not None
        factors = [loop.expression for loop in around]
        term = step.cost.flops.expression or ""
        term = "*".join([*factors, f"({term})" if factors and "+" in term else term])
        terms[term] = terms.get(term, 0) + 1
    formula = "+".join(collected(terms)) if has_formula and terms else None
    return Quantity(value, formula if formula is None or _value(formula, _sizes(trace)) == value else None)


def collected(terms: Mapping[str, int]) -> list[str]:
    """Return products with their multiplicities, the like ones together and each number in front.

    >>> collected({"H*2*B*L": 3, "5*B*L*L": 1, "2*B*L*L": 1})
    ['6*H*B*L', '7*B*L*L']
    """
    collected: dict[tuple[str, ...], int] = {}
    for term, count in terms.items():
        for part in [term] if "(" in term else term.split("+"):
            factors = part.split("*") if "(" not in part else [part]
            number = count
            for factor in factors:
                number *= int(factor) if factor.isdecimal() else 1
            rest = tuple(factor for factor in factors if not factor.isdecimal())
            same = next((known for known in collected if sorted(known) == sorted(rest)), rest)
            collected[same] = collected.get(same, 0) + number
    return ["*".join([*([str(number)] if number > 1 else []), *factors]) for factors, number in collected.items()]


def _crossover(trace: Trace, text: SectionWriter, total: TotalCost) -> None:
    """Say from which length on what grows quadratically costs more than what grows linearly."""
    lengths = [length for length in _LENGTHS if length in trace.sizes]
    expression = total.flops.expression if total.flops is not None else None
    if len(lengths) != 1 or expression is None:
        return
    sizes = _sizes(trace)
    values = [_value(expression, {**sizes, lengths[0]: size}) for size in (1, 2, 3, 4)]
    if None in values:
        return
    one, two, three, four = (value for value in values if value is not None)
    square = (three - 2 * two + one) / 2
    linear = two - one - 3 * square
    constant = one - square - linear
    if square <= 0 or linear <= 0 or constant != 0 or four != 16 * square + 4 * linear:
        return
    crossing = text.computed(
        "length at which both cost the same",
        linear / square,
        "linear part / quadratic part",
        format_count(round(linear / square)),
    )
    text.why(
        "What grows linearly treats each token by itself; what grows quadratically compares all pairs of tokens. At "
        f"about {lengths[0]} = {crossing} both cost the same. Far below that, twice the length costs about twice as "
        "much; far above it, about four times as much."
    )


def _parameters(trace: Trace) -> Section | None:
    total = trace.cost
    if total is UNSET or not total.parameters.value:
        return None
    text = SectionWriter("parameters", "Parameters")
    count, formula = _quantity(text, "parameters", total.parameters, lambda value: f"{value:,}")
    is_constant = growth(total.parameters.expression or "", _sizes(trace)) == 0
    same = " They don't depend on the length: the same parameters serve any number of tokens." if is_constant else ""
    text.what(f"The code has {count}{formula} parameters.{same}")
    return text.section()


def _memory(trace: Trace, attentions: Sequence[Attention]) -> Section | None:
    text = SectionWriter("memory", "Memory: what must be kept")
    rows = []
    for number, attention in enumerate(attentions, 1):
        of = f" of attention {number}" if len(attentions) > 1 else ""
        step = attention.first("softmax", "softmax")
        quantity = _bytes(trace, step.outputs[0].tensor) if step is not None else None
        if quantity is not None:
            size, formula = _quantity(text, f"bytes of the weights{of}", quantity, format_bytes)
            name = f"one tensor of scores or weights{of}"
            rows.append((name, f"{size}{formula}", _grows(trace, quantity.expression)))
    total = trace.cost
    counted = (("saved for the backward pass", total.saved), ("moved", total.moved)) if total is not UNSET else ()
    for name, each in counted:
        if each is not None and each.value:
            size, formula = _quantity(text, f"bytes {name}", each, format_bytes)
            rows.append((name, f"{size}{formula}", _grows(trace, each.expression)))
    length = join_words([length for length in _LENGTHS if length in trace.sizes] or ["the length"])
    text.table(("what", "bytes", f"grows with {length}"), rows)
    return text.section()


def _bytes(trace: Trace, tensor: TensorRecord) -> Quantity | None:
    """Return the bytes of a tensor with their formula; None if its axes don't give one."""
    width = tensor.bytes // max(prod(tensor.shape), 1)
    formula = "*".join([str(width), *(axis.expression for axis in tensor.axes)])
    return Quantity(tensor.bytes, formula) if _value(formula, _sizes(trace)) == tensor.bytes else None
