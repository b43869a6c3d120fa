"""Are the slopes of linear biases those of ALiBi?

Head h of n has the slope 2^(-8h/n) (Press et al. 2022, https://arxiv.org/abs/2108.12409, section 3). If n is no power
of two, the code of the paper takes the slopes of the power below it, and every second one of the power above it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from torch import Tensor

from attnshape.checks.attention.cores import FusedCore
from attnshape.checks.attention.layers import layers
from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import VisibleKeys
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.biases.slopes import are_given, slopes_of
from attnshape.checks.rules.protocol import Observation, Verification, Violation

_PRECISION = 1e-4
"""The relative error of a slope that is a step between biases in single precision."""
_FEWEST = 3
"""Any two slopes are a geometric sequence."""
_SHOWN = 5


def check_published(subject: Subject, visible: VisibleKeys, lines: MaskLines) -> Verification | Observation | Violation:
    """Compare the slopes of a bias that falls with the distance with those of the paper."""
    slopes = slopes_of(visible, _base(visible))
    if slopes is None:
        return Observation("the bias falls with the distance, though not linearly as ALiBi's")
    return _check_slopes(subject, visible, lines, slopes)


def check_loop_of_heads(subject: Subject, every: Sequence[VisibleKeys]) -> dict[OutputRef, Violation]:
    """Return what is wrong with the slopes of heads that one line computes one after the other, by their contexts."""
    groups: dict[object, list[VisibleKeys]] = {}
    paths = layers(subject)
    for visible in every:
        context = visible.core.context
        if visible.added.shape[1] == 1:
            groups.setdefault((subject.source(context), paths.get(context)), []).append(visible)
    found: dict[OutputRef, Violation] = {}
    for group in groups.values():
        slopes = [slopes_of(visible, _base(visible)) for visible in group]
        if len(group) < _FEWEST - 1 or not all(one is not None and len(one) == 1 for one in slopes):
            continue
        every_slope = [slope for one in slopes if one is not None for slope in one]
        outcome = _check_slopes(subject, group[0], MaskLines(subject, group[0].core), every_slope)
        if isinstance(outcome, Violation):
            found |= {visible.core.context: outcome for visible in group}
    return found


def _base(visible: VisibleKeys) -> float:
    """Return the natural logarithm of the base of the softmax's exponential."""
    return 1.0 if isinstance(visible.core, FusedCore) else visible.core.softmax.base


def _check_slopes(
    subject: Subject, visible: VisibleKeys, lines: MaskLines, slopes: Sequence[float]
) -> Verification | Observation | Violation:
    heads = max(subject.numbers.get("H", 0), len(slopes))
    if are_published(slopes, heads) or are_published(slopes, len(slopes)):
        return Verification("the bias falls with distance, as in ALiBi")
    written = ", ".join(f"{slope:.3g}" for slope in slopes[:_SHOWN]) + (", …" if len(slopes) > _SHOWN else "")
    if are_given(subject, visible):
        return Observation("the bias falls with the distance by slopes that are learned or given")
    are_equal = len(slopes) > 1 and not any(_spread(slopes))
    if not are_equal and _form_a_sequence(slopes):
        return Observation(f"the bias falls with the distance by other slopes than ALiBi's: {written}")
    message = f"the slopes of the heads are no geometric sequence, as ALiBi's are: {written}"
    if are_equal:
        message = f"all {len(slopes)} heads have the slope {slopes[0]:.3g}, where ALiBi's are a geometric sequence"
    hint = (
        f"compute each slope from its head alone: 2 ** (-8 * (h + 1) / H) for head h, {_geometric(heads)[0]:.3g} first"
    )
    at = lines.first_constant(lambda value: _are_numbers_of(value, slopes))
    return Violation("AS708", message, at, hint, "set the scores to 0, and read the bias at the softmax", "reproduced")


def are_published(slopes: Collection[float], heads: int) -> bool:
    """Return whether slopes are those of different heads, out of a number of heads that the paper gives slopes to."""
    return any(
        len(slopes) <= heads and len({_nearest(slope, expected) for slope in slopes} - {None}) == len(slopes)
        for expected in _sequences(heads)
    )


def counts(heads: int) -> tuple[int, ...]:
    """Return the numbers of heads for which slopes may have been made: powers of two serve other numbers."""
    power = 2 ** int(math.log2(heads)) if heads > 0 else 1
    return heads, power, 2 * power


def _sequences(heads: int) -> tuple[list[float], list[float]]:
    """Return the slopes of the paper for a number of heads, and those of its code."""
    own, power, twice = (_geometric(count) for count in counts(heads))
    return own, power + twice[::2][: heads - len(power)]


def _geometric(count: int) -> list[float]:
    return [2.0 ** (-8 * (head + 1) / count) for head in range(count)]


def _nearest(slope: float, expected: Sequence[float]) -> int | None:
    near = (place for place, one in enumerate(expected) if math.isclose(slope, one, rel_tol=_PRECISION))
    return next(near, None)


def _form_a_sequence(slopes: Sequence[float]) -> bool:
    """Return whether slopes are those of the paper to some power and times some number, or all equal."""
    given = _spread(slopes)
    if len(slopes) < _FEWEST or not any(given):
        return True
    return any(
        all(math.isclose(one, other, abs_tol=_PRECISION) for one, other in zip(given, _spread(expected), strict=True))
        for expected in _sequences(len(slopes))
    )


def _spread(slopes: Sequence[float]) -> list[float]:
    """Return the sorted logarithms, moved and scaled so that they run from 0 to 1; zeros if all are one number."""
    logarithms = sorted(map(math.log, slopes))
    least, most = logarithms[0], logarithms[-1]
    width = most - least
    return [(one - least) / width if width > _PRECISION else 0.0 for one in logarithms]


def _are_numbers_of(value: Tensor, slopes: Sequence[float]) -> bool:
    """Return whether a tensor has one number for each head: its slope, whatever the sign."""
    if value.numel() != len(slopes) or not value.is_floating_point():
        return False
    numbers = sorted(value.detach().abs().flatten().tolist())
    return all(math.isclose(a, b, rel_tol=_PRECISION) for a, b in zip(numbers, sorted(slopes), strict=True))
