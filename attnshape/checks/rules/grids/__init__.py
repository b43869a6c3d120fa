"""Do tokens of a map of rows and columns keep their neighbours, and are positions those on the map?

Pyramid Vision Transformer (Wang et al. 2021, https://arxiv.org/abs/2102.12122, section 3.3) folds tokens into their map
to pool keys. Swin (Liu et al. 2021, https://arxiv.org/abs/2103.14030, section 3.2) adds a bias by the offset of two
tokens. Both need the order in which the map was flattened. Deformable attention (Zhu et al. 2020,
https://arxiv.org/abs/2010.04159, section 4.1) samples a map at (x, y). A square map looks the same in either order.
"""

from __future__ import annotations

from collections.abc import Iterator

from attnshape.checks.attention.grids import grid
from attnshape.checks.attention.operands import of_distinct_code
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.visibility import explain_visibility
from attnshape.checks.rules.grids.folds import check_folds
from attnshape.checks.rules.grids.positions import check_biases, check_rotations, check_tables
from attnshape.checks.rules.grids.references import check_references
from attnshape.checks.rules.grids.samples import check_samples
from attnshape.checks.rules.grids.vectors import check_vectors
from attnshape.checks.rules.protocol import Outcome, Verification, Violation

CODES: tuple[str, ...] = ("AS105", "AS120", "AS122", "AS125", "AS717")
TOPIC = "rows and columns of maps"


def check(subject: Subject) -> Iterator[Outcome]:
    """Change each row and each column of a map, and look at which tokens' queries, keys and positions go with it."""
    yield from check_samples(subject)
    yield from check_references(subject)
    found = grid(subject)
    if found is None:
        return
    visible = {one.visible.core.context: one.visible for one in explain_visibility(subject)[0]}
    every = [(own, visible[own[0].core.context]) for own in of_distinct_code(subject) if own[0].core.context in visible]
    vectors = list(check_vectors(subject, found, every))
    yield from vectors
    if vectors:
        return
    folds = list(check_folds(subject, found, every))
    yield from folds
    if any(isinstance(outcome, Violation) for outcome in folds):
        return
    verified: dict[str, Verification] = {}
    for own, keys in every:
        for outcomes in (
            check_biases(subject, found, keys),
            check_rotations(subject, found, own),
            check_tables(subject, found, own),
        ):
            for outcome in outcomes:
                if isinstance(outcome, Violation):
                    yield outcome
                    return
                verified[outcome.text] = outcome
    yield from verified.values()
