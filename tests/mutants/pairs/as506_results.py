"""AS506 where the results show which tokens they depend on, or where the numbers of the tokens hide more keys."""

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import fused, merge
from tests.mutants.pairs.as501_results import (
    SIZES,
    Kernel,
    LateKernel,
    LateSigmoid,
    Retention,
    RetentionBothSides,
    Running,
    RunningByBlocks,
    Sigmoid,
    reference_decay_on_both_sides,
    reference_kernel_products_one_late,
    reference_running_softmax_by_blocks,
    reference_sigmoid_of_next_token,
)

PAIRS = [
    ("AS506", "kernel_sees_the_next", *SIZES),
    ("AS506", "sigmoid_sees_the_next", *SIZES),
    ("AS506", "decay_sees_both_sides", *SIZES),
    ("AS506", "running_sees_its_block", *SIZES),
    ("AS506", "best_of_all", *SIZES),
    ("AS506", "best_of_the_next_too", *SIZES),
    ("AS506", "above_mean_of_other_turn", *SIZES),
    ("AS506", "above_mean_of_both_turns", *SIZES),
    ("AS506", "best_of_later", *SIZES),
]


def _case(cls, B, H, L, Dk, visible="k <= q"):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, [f"visible={visible}"]


def wrong_kernel_sees_the_next(B, H, L, Dk):
    return _case(LateKernel, B, H, L, Dk)


def right_kernel_sees_the_next(B, H, L, Dk):
    return _case(Kernel, B, H, L, Dk)


def wrong_sigmoid_sees_the_next(B, H, L, Dk):
    return _case(LateSigmoid, B, H, L, Dk)


def right_sigmoid_sees_the_next(B, H, L, Dk):
    return _case(Sigmoid, B, H, L, Dk)


def wrong_decay_sees_both_sides(B, H, L, Dk):
    return _case(RetentionBothSides, B, H, L, Dk)


def right_decay_sees_both_sides(B, H, L, Dk):
    return _case(Retention, B, H, L, Dk)


def wrong_running_sees_its_block(B, H, L, Dk):
    return _case(RunningByBlocks, B, H, L, Dk)


def right_running_sees_its_block(B, H, L, Dk):
    return _case(Running, B, H, L, Dk)


reference_kernel_sees_the_next = reference_kernel_products_one_late
reference_sigmoid_sees_the_next = reference_sigmoid_of_next_token
reference_decay_sees_both_sides = reference_decay_on_both_sides
reference_running_sees_its_block = reference_running_softmax_by_blocks


class Best(nn.Module):
    """Each query keeps the three best of the keys that it may see."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def allowed(self, i, j):
        return j <= i

    def chosen(self, scores):
        return scores >= scores.topk(3, dim=-1).values[..., -1:]

    def attend(self, q, k, v, allowed):
        scores = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(~allowed, -torch.inf)
        return scores.masked_fill(~self.chosen(scores), -torch.inf).softmax(dim=-1) @ v

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        at = torch.arange(x.shape[1])
        return self.out(self.attend(q, k, v, self.allowed(at[:, None], at)).transpose(1, 2).flatten(2))


class BestOfAll(Best):
    def allowed(self, i, j):
        return (i >= 0) & (j >= 0)


class BestOfNext(Best):
    def allowed(self, i, j):
        return j <= i + 1


def wrong_best_of_all(B, H, L, Dk):
    return _case(BestOfAll, B, H, L, Dk)


def wrong_best_of_the_next_too(B, H, L, Dk):
    return _case(BestOfNext, B, H, L, Dk)


def right_best_of_all(B, H, L, Dk):
    return _case(Best, B, H, L, Dk)


def _reference(module, x, choose):
    """Return the result where each row of scores keeps those that `choose` returns, of the visible ones."""
    q, k, v = fused(x, module.qkv, module.heads)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    contexts = []
    for i in range(x.shape[1]):
        seen = [j for j in range(x.shape[1]) if choose(i, j)]
        row = scores[:, :, i, seen]
        weights = row.exp() * module.chosen(row) if len(seen) > 3 or not isinstance(module, Best) else row.exp()
        weights = weights / weights.sum(-1, keepdim=True)
        contexts.append(torch.einsum("bhj,bhjd->bhd", weights, v[:, :, seen]))
    return merge(torch.stack(contexts, 2), module.out)


def reference_best_of_all(module, x):
    return _reference(module, x, lambda i, j: j <= i)


right_best_of_the_next_too, reference_best_of_the_next_too = right_best_of_all, reference_best_of_all


class OfOwnTurn(Best):
    """Two speakers take turns; each keeps its own keys with at least the mean score."""

    def allowed(self, i, j):
        return i % 2 == j % 2

    def chosen(self, scores):
        seen = scores > -torch.inf
        return scores >= scores.where(seen, 0).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True)

    def attend(self, q, k, v, allowed):
        scores = torch.einsum("bhid,bhjd->bhij", q, k) / q.shape[-1] ** 0.5
        scores = torch.where(allowed, scores, -torch.inf)
        weights = torch.where(self.chosen(scores), scores, -torch.inf).softmax(dim=-1)
        return torch.einsum("bhij,bhjd->bhid", weights, v)


class OfOtherTurn(OfOwnTurn):
    def allowed(self, i, j):
        return i % 2 != j % 2


def wrong_above_mean_of_other_turn(B, H, L, Dk):
    return _case(OfOtherTurn, B, H, L, Dk, "(q - k) % 2 == 0")


def right_above_mean_of_other_turn(B, H, L, Dk):
    return _case(OfOwnTurn, B, H, L, Dk, "(q - k) % 2 == 0")


def reference_above_mean_of_other_turn(module, x):
    q, k, v = fused(x, module.qkv, module.heads)
    scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
    at = torch.arange(x.shape[1])
    seen = (at[:, None] - at) % 2 == 0
    kept = seen & (scores >= (scores * seen).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True))
    weights = scores.exp() * kept
    return merge(torch.einsum("bhij,bhjd->bhid", weights / weights.sum(-1, keepdim=True), v), module.out)


class OfBothTurns(OfOwnTurn):
    def allowed(self, i, j):
        return i + j >= 0


def wrong_above_mean_of_both_turns(B, H, L, Dk):
    return _case(OfBothTurns, B, H, L, Dk, "(q - k) % 2 == 0")


right_above_mean_of_both_turns = right_above_mean_of_other_turn
reference_above_mean_of_both_turns = reference_above_mean_of_other_turn


class BestOfLater(Best):
    def allowed(self, i, j):
        return j >= i


def wrong_best_of_later(B, H, L, Dk):
    return _case(BestOfLater, B, H, L, Dk)


right_best_of_later, reference_best_of_later = right_best_of_all, reference_best_of_all
