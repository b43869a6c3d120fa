"""Do the slopes of linear biases depend on other sizes than the number of heads?

Those of ALiBi depend on the head and the number of heads (Press et al. 2022, https://arxiv.org/abs/2108.12409, section
3). They are compared at two sets of sizes that have the same number of heads, and nothing else in common.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from attnshape.checks.attention.cores import FusedCore
from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.subject import Subject, once
from attnshape.checks.attention.visibility import VisibleKeys, explain_visibility
from attnshape.checks.interventions.replay import OutputRef
from attnshape.checks.rules.biases.slopes import additions, are_given, slopes_of
from attnshape.checks.rules.protocol import Violation

_CLOSE = 1e-3
"""The relative difference up to which slopes are the same: in single precision, steps between large numbers differ."""
_POWERS = ((-0.5, "1/sqrt({})"), (-1.0, "1/{}"), (0.5, "sqrt({})"), (1.0, "{}"))


def check_sizes(subject: Subject, visible: VisibleKeys, lines: MaskLines) -> Violation | bool:
    """Return a violation if the slopes change with other sizes, else whether they are known not to."""
    slopes, others = slopes_of(visible), _slopes_elsewhere(subject, visible)
    if slopes is None or others is None or len(slopes) != len(others):
        return False
    if _are_close(slopes, others):
        return True
    here, there = subject.numbers, subject.apart_with_these_heads or {}
    size = _size_that_scales(subject, [one / other for one, other in zip(slopes, others, strict=True)])
    message = "the slopes depend on other sizes than the number of heads"
    if size is not None:
        message = f"the slopes are scaled by {size[1]}, and so depend on {size[0]}"
    changed = [name for name in there if there[name] != here.get(name)]
    numbers = [" ".join(f"{name}={sizes.get(name)}" for name in changed) for sizes in (here, there)]
    message = f"{message}: the first is {slopes[0]:.4g} at {numbers[0]}, and {others[0]:.4g} at {numbers[1]}"
    hint = "make slopes of the head and the number of heads alone, and add the bias to scores that are scaled already"
    at = _sum_that_scales(subject, visible, slopes) or lines.constant()
    return Violation("AS713", message, at, hint, "compared the bias at the softmax with that at other sizes")


def _slopes_elsewhere(subject: Subject, visible: VisibleKeys) -> list[float] | None:
    """Return the slopes of an attention at other sizes with as many heads; None if they aren't known.

    Those that depend on parameters or on inputs other than masks aren't: these may be other numbers there.
    """
    other = _elsewhere(subject) if not are_given(subject, visible) else None
    if other is None:
        return None
    found = [one.visible for one in explain_visibility(other)[0]]
    own = [one.visible.core for one in explain_visibility(subject)[0]]
    place = next((place for place, core in enumerate(own) if core is visible.core), None)
    return slopes_of(found[place]) if place is not None and len(found) == len(own) else None


@once
def _elsewhere(subject: Subject) -> Subject | None:
    """Return the target at sizes with as many heads; None if it fails at them."""
    sizes = subject.apart_with_these_heads
    experiment = subject.experiment.at(sizes) if sizes is not None else None
    if experiment is None or experiment.base.error is not None or experiment.raw.failure is not None:
        return None
    return Subject(experiment, subject.claims, None)


def _size_that_scales(subject: Subject, ratios: Sequence[float]) -> tuple[str, str] | None:
    """Return the size by a power of which all slopes are scaled, and the power; None if there is none."""
    here, there = subject.numbers, subject.apart_with_these_heads or {}
    for name in sorted(there, key=lambda name: name != "Dk"):
        for power, text in _POWERS:
            expected = (here[name] / there[name]) ** power
            if here[name] != there[name] and _are_close(ratios, [expected] * len(ratios)):
                return name, text.format(name)
    return None


def _sum_that_scales(subject: Subject, visible: VisibleKeys, slopes: Sequence[float]) -> OutputRef | None:
    """Return the sum of scores and bias, if the bias falls by other steps at the softmax than before the sum."""
    core = visible.core
    for ref, place in [] if isinstance(core, FusedCore) else additions(subject, core, visible):
        bias = visible.laid_out(subject.base.value(place[0]).double()) if isinstance(place[0], OutputRef) else None
        before = slopes_of(replace(visible, added=bias)) if bias is not None else None
        return ref if before is not None and not _are_close(before, slopes) else None
    return None


def _are_close(one: Sequence[float], other: Sequence[float]) -> bool:
    return len(one) == len(other) and all(math.isclose(a, b, rel_tol=_CLOSE) for a, b in zip(one, other, strict=True))
