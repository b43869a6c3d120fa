"""AS505 without a softmax of scores: what reaches a result from outside of its window may have come another way."""

import torch
from torch import nn

from tests.mutants.pairs.as501_results import (
    SIZES,
    Base,
    Retention,
    Running,
    Sigmoid,
    plain,
    reference_decay_on_both_sides,
    reference_kernel_products_one_late,
    reference_running_softmax_by_blocks,
    reference_sigmoid_of_next_token,
    weighed,
)

WINDOWS = tuple(sizes | {"W": 4} for sizes in SIZES)
PAIRS = [
    ("AS505", "sigmoid_one_further", *WINDOWS),
    ("AS505", "difference_of_sums", *WINDOWS),
    ("AS505", "running_softmax_up_to_width", *WINDOWS),
    ("AS505", "squares_of_all", *WINDOWS),
    ("AS505", "decay_without_end", *WINDOWS),
]


def _case(cls, B, H, L, Dk, W):
    return cls(H * Dk, H, W), (torch.randn(B, L, H * Dk),), {}, ["causal", "window=W"]


class SigmoidWindow(Sigmoid):
    def kept(self, length):
        return torch.ones(length, length, dtype=torch.bool).tril().triu(1 - self.window)


class SigmoidWider(Sigmoid):
    def kept(self, length):
        return torch.ones(length, length, dtype=torch.bool).tril().triu(-self.window)


def wrong_sigmoid_one_further(B, H, L, Dk, W):
    return _case(SigmoidWider, B, H, L, Dk, W)


def right_sigmoid_one_further(B, H, L, Dk, W):
    return _case(SigmoidWindow, B, H, L, Dk, W)


class Difference(Base):
    """Linear attention to the last tokens: sums up to here without the sums up to the window."""

    def leaves(self, t):
        return t - self.window

    def attend(self, q, k, v):
        q, k = (nn.functional.elu(t) + 1 for t in (q, k))
        state, total, contexts = 0, 0, []
        for t in range(q.shape[2]):
            state = state + k[:, :, t, :, None] * v[:, :, t, None]
            total = total + k[:, :, t]
            gone = self.leaves(t)
            if gone >= 0:
                state = state - k[:, :, gone, :, None] * v[:, :, gone, None]
                total = total - k[:, :, gone]
            read = torch.einsum("bhd,bhde->bhe", q[:, :, t], state)
            contexts.append(read / (q[:, :, t] * total).sum(dim=-1, keepdim=True))
        return torch.stack(contexts, dim=2)


class DifferenceWider(Difference):
    def leaves(self, t):
        return t - self.window - 1


def wrong_difference_of_sums(B, H, L, Dk, W):
    return _case(DifferenceWider, B, H, L, Dk, W)


def right_difference_of_sums(B, H, L, Dk, W):
    return _case(Difference, B, H, L, Dk, W)


class RunningWindow(Running):
    def kept(self, i, j):
        return (j <= i) & (i - j < self.window)


class RunningWider(Running):
    def kept(self, i, j):
        return (j <= i) & (i - j <= self.window)


def wrong_running_softmax_up_to_width(B, H, L, Dk, W):
    return _case(RunningWider, B, H, L, Dk, W)


def right_running_softmax_up_to_width(B, H, L, Dk, W):
    return _case(RunningWindow, B, H, L, Dk, W)


class Squares(Base):
    """The squares of positive scores are the weights."""

    def band(self, scores):
        return scores.tril().triu(1 - self.window)

    def attend(self, q, k, v):
        scores = torch.matmul(q, k.transpose(2, 3)) / q.shape[-1] ** 0.5
        return self.band(scores.relu().square()) @ v


class SquaresOfAll(Squares):
    def band(self, scores):
        return scores.tril()


def wrong_squares_of_all(B, H, L, Dk, W):
    return _case(SquaresOfAll, B, H, L, Dk, W)


def right_squares_of_all(B, H, L, Dk, W):
    return _case(Squares, B, H, L, Dk, W)


def reference_squares_of_all(module, x):
    return weighed(module, x, lambda q, k: plain(q, k).clamp(min=0) ** 2 / q.shape[-1])


class RetentionWindow(Retention):
    def decay(self, length):
        return super().decay(length).triu(1 - self.window)


class RetentionWithoutEnd(Retention):
    """The window is left out, as if the decay made up for it."""


def wrong_decay_without_end(B, H, L, Dk, W):
    return _case(RetentionWithoutEnd, B, H, L, Dk, W)


def right_decay_without_end(B, H, L, Dk, W):
    return _case(RetentionWindow, B, H, L, Dk, W)


reference_sigmoid_one_further = reference_sigmoid_of_next_token
reference_difference_of_sums = reference_kernel_products_one_late
reference_running_softmax_up_to_width = reference_running_softmax_by_blocks
reference_decay_without_end = reference_decay_on_both_sides
