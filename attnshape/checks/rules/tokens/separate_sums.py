"""Are scores sums of products of features, and not products of two sums?

`einsum("bhqd,bhke->bhqk")` sums the features of the queries and those of the keys, each by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attnshape.checks.attention.products import Product
from attnshape.checks.attention.subject import Subject
from attnshape.checks.rules.protocol import Violation


def check_separate_sums(subject: Subject) -> Iterator[Violation]:
    """Multiply one feature of the queries by another one of the keys: their score must be zero."""
    for core in subject.cores:
        if _meet(core.scores):
            message = "the features of queries and keys are summed separately: each score is a product of two sums"
            hint = "give both the same letter for their features: einsum('bhqd,bhkd->bhqk', q, k)"
            evidence = "set all features of the queries to 0 but one, and those of the keys but another one"
            yield Violation("AS126", message, core.scores.ref, hint, evidence)
            return


def _meet(product: Product) -> bool:
    """Return whether different features of two operands make a score."""
    left, right = (_with_one_feature(product, place, place == product.left) for place in product.places)
    if left is None or right is None:
        return False
    both = product.with_operands({product.left: left, product.right: right})
    neither = product.with_operands({product.left: torch.zeros_like(left), product.right: torch.zeros_like(right)})
    return bool((both != neither).any())  # something else may be added in the same call


def _with_one_feature(product: Product, place: int, is_first: bool) -> Tensor | None:
    """Return an operand of ones at its first or its second feature, and of zeros elsewhere; None if it has only one."""
    operand, axes = product.operand(place), product.contracted(place)
    if len(axes) != 1 or operand.shape[axes[0]] < 2:
        return None
    one = torch.zeros_like(operand)
    one.select(axes[0], 0 if is_first else 1).fill_(1.0)
    return one
