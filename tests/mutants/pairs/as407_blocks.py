"""AS407 of a running softmax, whose last block takes in what a mask hides."""

import torch

from tests.mutants.pairs.as407_results import SIZES, Masked, _case, weighed
from tests.mutants.pairs.as501_results import BLOCK, plain

PAIRS = [("AS407", "last_block_of_padding", *SIZES)]


class Running(Masked):
    """A softmax over blocks of keys, with the maximum and the sum so far."""

    def kept(self, mask, start):
        return mask[:, None, None, start : start + BLOCK]

    def attend(self, q, k, v, mask):
        most = q.new_full((*q.shape[:3], 1), -1e9)
        total, context = torch.zeros_like(most), torch.zeros_like(v)
        for start in range(0, k.shape[2], BLOCK):
            scores = torch.einsum("bhid,bhjd->bhij", q, k[:, :, start : start + BLOCK]) * q.shape[-1] ** -0.5
            scores = scores.masked_fill(~self.kept(mask, start), -torch.inf)
            new = torch.maximum(most, scores.amax(dim=-1, keepdim=True))
            weights, before = torch.exp(scores - new), torch.exp(most - new)
            total = total * before + weights.sum(dim=-1, keepdim=True)
            context = context * before + weights @ v[:, :, start : start + BLOCK]
            most = new
        return context / total


class RunningPastTheMask(Running):
    def kept(self, mask, start):
        kept = super().kept(mask, start)
        return kept if start + BLOCK < mask.shape[1] else torch.ones_like(kept)


def wrong_last_block_of_padding(B, H, L, Dk):
    return _case(RunningPastTheMask, B, H, L, Dk)


def right_last_block_of_padding(B, H, L, Dk):
    return _case(Running, B, H, L, Dk)


def reference_last_block_of_padding(module, x, mask):
    def weigh(q, k):
        weights = (plain(q, k) * q.shape[-1] ** -0.5).exp()
        return weights / (weights * mask[:, None, None]).sum(-1, keepdim=True)

    return weighed(module, x, mask, weigh)
