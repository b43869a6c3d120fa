"""AS707 where slopes are repeated in another order than batch and heads are folded in."""

import torch

from tests.mutants.pairs.further_masks import SIZES, Sloped, reference_slopes_of_batch, with_slopes

PAIRS = [("AS707", "slopes_folded_across", *SIZES)]


class Folded(Sloped):
    def of_rows(self, batch):
        return self.slopes.repeat(batch)

    def forward(self, x):
        B, L, D = x.shape
        q, k, v = (
            t.view(B, L, self.n_heads, -1).transpose(1, 2).reshape(B * self.n_heads, L, -1)
            for t in self.qkv(x).chunk(3, dim=-1)
        )
        at = torch.arange(L)
        bias = -self.of_rows(B)[:, None, None] * (at[:, None] - at).abs()
        scores = torch.baddbmm(bias.to(x), q, k.mT, alpha=q.shape[-1] ** -0.5)
        return torch.bmm(scores.softmax(dim=-1), v).view(B, self.n_heads, L, -1).transpose(1, 2).reshape(B, L, D)


class FoldedAcross(Folded):
    def of_rows(self, batch):
        return self.slopes.repeat_interleave(batch)


def wrong_slopes_folded_across(B, H, L, Dk):
    return with_slopes(FoldedAcross, B, H, L, Dk)


def right_slopes_folded_across(B, H, L, Dk):
    return with_slopes(Folded, B, H, L, Dk)


reference_slopes_folded_across = reference_slopes_of_batch
