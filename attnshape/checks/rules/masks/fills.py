"""Finds numbers that are written over masked scores, or added to them, and still give their keys weight."""

from __future__ import annotations

from functools import partial

import torch

from attnshape.checks.attention.cores import Core
from attnshape.checks.attention.elementwise import HIDES, HIDES_BESIDE_SCORES, distinct
from attnshape.checks.attention.mistake_lines import MaskLines
from attnshape.checks.attention.perturbation import other_numbers
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import EVIDENCE, ExplainedVisibility
from attnshape.checks.interventions.experiment import Intervention
from attnshape.checks.interventions.replay import ReplayedCall
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing.operations import ELEMENT_WRITES, MASKS, MULTIPLICATIONS, TRIANGLES

_WRITES = MASKS | TRIANGLES | ELEMENT_WRITES
"""What puts another number in the place of a score."""
_violation = partial(Violation, evidence=EVIDENCE, shown="reproduced")


def too_small(subject: Subject, explanation: ExplainedVisibility) -> Violation | None:
    """Return a violation if a fill value, or an added number, leaves masked keys with weight."""
    visible, expected = explanation.visible, explanation.wanted
    lines = MaskLines(subject, visible.core)
    if "dropout" in subject.claims.arguments.values():
        return None  # a dropped score is not a masked one
    if visible.is_weak and _is_constant(subject, explanation):
        fills = distinct(visible.added[visible.weak])
        if fills[0] > HIDES_BESIDE_SCORES:
            at = next((event.refs[0] for event in lines.applications if _replaces(event)), lines.softmax)
            message = f"masked scores become {fills[0]:.4g}, which still gives their keys weight"
            return _violation("AS405", message, at, "fill with -inf: scores.masked_fill(~mask, -torch.inf)")
    if expected is None or explanation.hypothesis == explanation.right:
        return None
    hidden = ~expected & ~visible.empty.unsqueeze(-1) & expected.any(-1, keepdim=True)
    if not bool(hidden.any()) or not bool(visible.keys[hidden].all()):
        return None
    fills, kept = distinct(visible.added[hidden]), distinct(visible.added[expected])
    names = [name for name, _ in explanation.right.masks]
    # a claim about positions is judged beside scores around 0, as Swin's regions, to whose scores -100 is added
    least = HIDES if names else HIDES_BESIDE_SCORES
    if len(fills) != 1 or len(kept) != 1 or not least < fills[0] < kept[0]:
        return None
    at = lines.last_change(names[0]) if names else lines.triangle()
    message = f"masked scores get {fills[0]:.4g} added, which still gives their keys weight"
    return _violation("AS405", message, at, "add -inf, or the dtype's smallest number: torch.finfo(scores.dtype).min")


def _replaces(event: ReplayedCall) -> bool:
    """Return whether a call may put numbers in the place of scores; a product does if it is zero, unlike a scale."""
    return event.name in _WRITES or (event.name in MULTIPLICATIONS and bool((event.values[0] == 0).any()))


def _is_constant(subject: Subject, explanation: ExplainedVisibility) -> bool:
    """Return whether the replaced scores are the same number for all inputs."""
    core = explanation.visible.core
    fills = distinct(explanation.visible.added[explanation.visible.weak])
    if not isinstance(core, Core) or len(fills) != 1:
        return False
    change = Intervention(inputs=dict.fromkeys(subject.inputs, other_numbers))
    if not any(value.is_floating_point() for value in subject.inputs.values()):
        # other numbers of tokens would make other tokens of padding
        change = Intervention(results={core.scores.ref: other_numbers})
    run = subject.experiment.run(change)
    if not run.follows(subject.base):
        return False
    before, after = core.softmax.scores, run.events[core.softmax.owner.order - 1].operand_values[core.softmax.place]
    same = torch.isclose(before, after, rtol=1e-9, atol=1e-12)
    return bool((same & torch.isclose(before.double(), torch.tensor(fills[0], dtype=torch.float64))).any())
