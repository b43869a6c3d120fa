"""Is each key made of one token's features, where tokens of a map are gathered around each query?

`unfold` puts the neighbours of a pixel behind its channels (Ramachandran et al. 2019,
https://arxiv.org/abs/1906.05909, section 3, attends to them). A view in another order cuts across both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from attnshape.checks.attention.grids import TokenGrid
from attnshape.checks.attention.operands import AttentionOperands
from attnshape.checks.attention.subject import Subject
from attnshape.checks.attention.token_positions import NO_TOKEN
from attnshape.checks.attention.visibility import VisibleKeys
from attnshape.checks.rules.protocol import Violation
from attnshape.tracing import operations as ops

_MOST_TOKENS = 2
"""How many tokens a vector may have features of on purpose, as where some channels are shifted."""


def check_vectors(
    subject: Subject, grid: TokenGrid, attentions: Sequence[tuple[AttentionOperands, VisibleKeys]]
) -> Iterator[Violation]:
    """Follow each feature of the keys to the token that it comes from."""
    for (_, key, _), _ in attentions:
        lines = grid.of_operand(key)
        if lines is None or lines.places is None or len(key.contracted) != 1:
            continue
        rows, columns = (one.expand(key.value.shape) for one in lines.places)
        numbers = torch.where(rows == NO_TOKEN, NO_TOKEN, rows * grid.sizes[1] + columns)
        vectors = numbers.movedim(key.contracted[0], -1).flatten(0, -2)
        ordered = vectors[(vectors != NO_TOKEN).all(-1)].sort(-1).values
        counts = (ordered.diff(dim=-1) != 0).sum(-1) + 1
        if counts.numel() and float((counts > _MOST_TOKENS).double().mean()) > 0.5:
            number = int(counts.max())
            message = (
                f"the features of one key come from up to {number} tokens of the map: a layout operation mixes them"
            )
            hint = "unfold gives the channels first: view(B, H, Dk, -1, L), and then move the neighbours"
            layouts = (event for event in subject.graph.upstream(key.sources) if event.name in ops.RESHAPES)
            at = next((event.refs[0] for event in layouts), key.core.context)
            yield Violation("AS105", message, at, hint, "changed each row and each column of the map")
            return
