"""Have all products that are added to the scores one scale?"""

from __future__ import annotations

import math
from functools import partial

import torch

from attnshape.checks.attention.cores import Core
from attnshape.checks.attention.elementwise import measure_cores
from attnshape.checks.attention.operands import AttentionOperand, AttentionOperands
from attnshape.checks.attention.products import Product
from attnshape.checks.attention.rotated_parts import score_pairs
from attnshape.checks.attention.subject import Subject
from attnshape.checks.rules.protocol import Undecided, Violation
from attnshape.checks.rules.scale.stretch import stretch
from attnshape.tracing.operations import PRODUCTS_WITH_ADDEND

_CLOSE = 1e-3
_EVIDENCE = "replaced products and projections by known numbers, and read them at the softmax"


def unequal_terms(subject: Subject, own: AttentionOperands, topic: str) -> Violation | Undecided | None:
    """Return the finding about a product of scores whose scale is another one than that of the first product.

    Without a claimed scale that may be meant: a notice. A claimed scale is undecided if that of one can't be told. None
    if all have one scale.
    """
    core = own[0].core
    assert isinstance(core, Core)
    scales: list[float] = []
    pairs = list(score_pairs(subject, own))
    has_all = len(pairs) > len(core.more_scores)
    for query, key in pairs:
        assert isinstance(query.core, Core)
        scale = _scale(subject, query, key) if has_all else None
        if scale is None:
            why = "the scale of one of the products that are added to the scores can't be told"
            return Undecided(topic, why, ("scale",)) if subject.claims.scale is not None else None
        scales.append(scale)
        if not math.isclose(scale, scales[0], rel_tol=_CLOSE):
            is_claimed = subject.claims.scale is not None
            violation = partial(Violation, claims=("scale",)) if is_claimed else partial(Violation, level="notice")
            message = (
                f"products of queries and keys are added with different scales: the first has {scales[0]:.4g}, "
                f"another {scale:.4g}"
            )
            hint = "scale their sum: (content + positions) * scale"
            return violation("AS207", message, query.core.scores.ref, hint, _EVIDENCE, "reproduced")
    return None


def _scale(subject: Subject, query: AttentionOperand, key: AttentionOperand) -> float | None:
    """Return by how much the scores of one product are larger than the product of projected queries and keys."""
    assert isinstance(query.core, Core)
    (measured,) = measure_cores(subject.experiment, subject.graph, [query.core])
    mapping = measured.scores_map
    lengths = [stretch(subject, operand) for operand in (query, key)]
    inner = inner_factor(query.core.scores)
    if mapping is None or mapping.common_factor is None or inner is None or lengths[0] is None or lengths[1] is None:
        return None
    return abs(mapping.common_factor * inner) * lengths[0] * lengths[1]


def inner_factor(scores: Product) -> float | None:
    """Return the factor within a product itself: baddbmm and addmm have one."""
    if scores.last.name not in PRODUCTS_WITH_ADDEND:
        return 1.0
    plain = torch.matmul(scores.operand(scores.left), scores.operand(scores.right))
    ratio = ((scores.result - scores.added) / plain).flatten()
    return float(ratio.median()) if bool(torch.isclose(ratio, ratio.median(), rtol=1e-5).all()) else None
