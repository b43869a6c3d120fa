"""Masks and biases that nothing is claimed about, whose effect contradicts itself."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, project

ROWS = (
    {"B": 2, "H": 5, "L": 7, "W": 3, "Dk": 4},
    {"B": 5, "H": 3, "L": 6, "W": 4, "Dk": 8},
    {"B": 3, "H": 7, "L": 9, "W": 2, "Dk": 6},
)
SELF = (
    {"B": 4, "H": 5, "L": 7, "Dk": 6},
    {"B": 5, "H": 4, "L": 9, "Dk": 8},
    {"B": 6, "H": 7, "L": 5, "Dk": 4},
)
PAIRS = [
    ("AS402", "cancelled_in_rows", *ROWS),
    ("AS402", "cancelled_in_kernel", *SELF),
    ("AS402", "cancelled_penalty", *SELF),
    ("AS707", "cancelled_prior", *SELF),
    ("AS707", "cancelled_prior_in_kernel", *SELF),
    ("AS707", "cancelled_in_baddbmm", *SELF),
    ("AS401", "focus_inverted", *ROWS),
    ("AS401", "focus_inverted_in_kernel", *SELF),
    ("AS401", "focus_inverted_when_added", *SELF),
]


def kept(B, L):
    """1 at the first tokens of each sentence, at least one of them, and 0 at one token or more."""
    return (torch.arange(L) < torch.randint(1, L, (B, 1))).to(torch.get_default_dtype())


class Rows(nn.Module):
    """Attends along the rows of an alignment, with a bias for each pair of columns."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.pairs, self.out = nn.Linear(width, 3 * width), nn.Linear(8, n_heads), nn.Linear(width, width)

    def penalty(self, observed):
        return 1e4 * (observed - 1)[:, :, None, None, :]

    def forward(self, x, pairs, observed):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.n_heads, -1)).unbind(-3)
        scores = torch.einsum("bwqhd,bwkhd->bwhqk", q, k) * q.shape[-1] ** -0.5
        scores = scores + self.penalty(observed) + self.pairs(pairs).movedim(-1, 1)[:, None]
        return self.out(torch.einsum("bwhqk,bwkhd->bwqhd", scores.softmax(-1), v).flatten(3))


class RowsOfQueries(Rows):
    def penalty(self, observed):
        return 1e4 * (observed - 1)[:, :, None, :, None]  # wrong: AS402 cancelled_in_rows


def _rows(cls, B, H, L, W, Dk):
    observed = kept(B * W, L).reshape(B, W, L)
    return cls(H * Dk, H), (torch.randn(B, W, L, H * Dk), torch.randn(B, L, L, 8), observed), {}


def wrong_cancelled_in_rows(B, H, L, W, Dk):
    return _rows(RowsOfQueries, B, H, L, W, Dk)


def right_cancelled_in_rows(B, H, L, W, Dk):
    return _rows(Rows, B, H, L, W, Dk)


def reference_cancelled_in_rows(module, x, pairs, observed):
    q, k, v = fused(x.flatten(0, 1), module.qkv, module.n_heads)
    bias = project(pairs, module.pairs).permute(0, 3, 1, 2).repeat_interleave(x.shape[1], 0)
    keep = (observed > 0.5).flatten(0, 1)[:, None, None, :]
    return merge(attend(q, k, v, keep, bias), module.out).unflatten(0, x.shape[:2])


class InKernel(nn.Module):
    """Torch's fused attention, with a mask or a prior that is added."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))

    def added(self, mask):
        length = mask.shape[1]
        return mask[:, None, None, :].log().expand(-1, 1, length, -1)

    def forward(self, x, mask):
        q, k, v = (linear(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for linear in (self.q, self.k, self.v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=self.added(mask)).transpose(1, 2).flatten(2)


class InKernelOnQueries(InKernel):
    def added(self, mask):
        penalty = mask[:, None, :, None].clamp(min=1e-9).log()  # wrong: AS402 cancelled_in_kernel
        return penalty.expand(-1, 1, -1, mask.shape[1])


def _in_kernel(cls, B, H, L, Dk, mask):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), mask(B, L)), {}


def wrong_cancelled_in_kernel(B, H, L, Dk):
    return _in_kernel(InKernelOnQueries, B, H, L, Dk, kept)


def right_cancelled_in_kernel(B, H, L, Dk):
    return _in_kernel(InKernel, B, H, L, Dk, kept)


def reference_cancelled_in_kernel(module, x, mask):
    q, k, v = (heads(x, linear, module.n_heads) for linear in (module.q, module.k, module.v))
    return merge(attend(q, k, v, keep=mask[:, None, None, :] > 0.5))


class PriorInKernelOnQueries(InKernel):
    def added(self, mask):
        length = mask.shape[1]
        return mask[:, None, :, None].log().expand(-1, 1, -1, length)  # wrong: AS707 cancelled_prior_in_kernel


def _prior(B, L):
    return torch.rand(B, L) + 0.1


def wrong_cancelled_prior_in_kernel(B, H, L, Dk):
    return _in_kernel(PriorInKernelOnQueries, B, H, L, Dk, _prior)


def right_cancelled_prior_in_kernel(B, H, L, Dk):
    return _in_kernel(InKernel, B, H, L, Dk, _prior)


def reference_cancelled_prior_in_kernel(module, x, prior):
    q, k, v = (heads(x, linear, module.n_heads) for linear in (module.q, module.k, module.v))
    return merge(attend(q, k, v, bias=prior[:, None, None, :].log()))


def penalised(query, key, value, hidden):
    """Subtract a penalty from the scores of hidden keys, in (B, L, H, Dk)."""
    scores = torch.einsum("blhd,bmhd->bhlm", query, key) / query.shape[-1] ** 0.5
    scores = scores - 1e5 * hidden[:, None, None]
    return torch.einsum("bhlm,bmhd->blhd", torch.softmax(scores, -1), value)


def penalised_by_query(query, key, value, hidden):
    """Subtract a penalty from the scores of hidden keys, in (B, L, H, Dk)."""
    scores = torch.einsum("blhd,bmhd->bhlm", query, key) / query.shape[-1] ** 0.5
    scores = scores - 1e5 * hidden[:, None, :, None]  # wrong: AS402 cancelled_penalty
    return torch.einsum("bhlm,bmhd->blhd", torch.softmax(scores, -1), value)


def _penalised(function, B, H, L, Dk):
    return function, (*(torch.randn(B, L, H, Dk) for _ in range(3)), 1 - kept(B, L)), {}


def wrong_cancelled_penalty(B, H, L, Dk):
    return _penalised(penalised_by_query, B, H, L, Dk)


def right_cancelled_penalty(B, H, L, Dk):
    return _penalised(penalised, B, H, L, Dk)


def reference_cancelled_penalty(_, query, key, value, hidden):
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    return attend(q, k, v, keep=hidden[:, None, None, :] < 0.5).transpose(1, 2)


def weighted(query, key, value, prior):
    """Add the logarithm of a prior of each token to the scores, in (B, H, L, Dk)."""
    scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
    scores += prior.log()[:, None, None, :]
    return scores.softmax(-1) @ value


def weighted_by_query(query, key, value, prior):
    """Add the logarithm of a prior of each token to the scores, in (B, H, L, Dk)."""
    scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
    scores += prior.log()[:, None, :, None]  # wrong: AS707 cancelled_prior
    return scores.softmax(-1) @ value


def _weighted(function, B, H, L, Dk):
    return function, (*(torch.randn(B, H, L, Dk) for _ in range(3)), _prior(B, L)), {}


def wrong_cancelled_prior(B, H, L, Dk):
    return _weighted(weighted_by_query, B, H, L, Dk)


def right_cancelled_prior(B, H, L, Dk):
    return _weighted(weighted, B, H, L, Dk)


def reference_cancelled_prior(_, query, key, value, prior):
    return attend(query, key, value, bias=prior[:, None, None, :].log())


class InBaddbmm(nn.Module):
    """Adds an importance of each token within the product of folded heads."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.query_key_value, self.dense = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def placed(self, importance, length):
        of_heads = importance.repeat_interleave(self.n_heads, 0)
        return of_heads[:, None].expand(-1, length, -1)

    def forward(self, x, importance):
        batch, length, width = x.shape
        q, k, v = self.query_key_value(x).view(batch, length, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4).flatten(1, 2)
        scores = torch.baddbmm(self.placed(importance, length), q, k.mT, alpha=q.shape[-1] ** -0.5)
        context = torch.bmm(F.softmax(scores, dim=-1), v)
        return self.dense(context.unflatten(0, (batch, -1)).transpose(1, 2).reshape(batch, length, width))


class InBaddbmmOnQueries(InBaddbmm):
    def placed(self, importance, length):
        of_heads = importance.repeat_interleave(self.n_heads, 0)
        return of_heads[:, :, None].expand(-1, -1, length)  # wrong: AS707 cancelled_in_baddbmm


def _in_baddbmm(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), torch.randn(B, L)), {}


def wrong_cancelled_in_baddbmm(B, H, L, Dk):
    return _in_baddbmm(InBaddbmmOnQueries, B, H, L, Dk)


def right_cancelled_in_baddbmm(B, H, L, Dk):
    return _in_baddbmm(InBaddbmm, B, H, L, Dk)


def reference_cancelled_in_baddbmm(module, x, importance):
    q, k, v = fused(x, module.query_key_value, module.n_heads)
    return merge(attend(q, k, v, bias=importance[:, None, None, :]), module.dense)


class OfFrames(nn.Module):
    """Attends over time; a sample with focus sees only the present frame."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.to_q, self.to_kv, self.to_out = (nn.Linear(width, n * width, bias=False) for n in (1, 2, 1))

    def hide(self, scores, allowed):
        return scores.masked_fill(~allowed, -torch.finfo(scores.dtype).max)

    def forward(self, x, focus):
        frames = x.shape[2]
        q, (k, v) = self.to_q(x), self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(2, 3) for t in (q, k, v))
        scores = q @ k.mT * q.shape[-1] ** -0.5
        present, every = torch.eye(frames, dtype=torch.bool), torch.ones(frames, frames, dtype=torch.bool)
        allowed = torch.where(focus[:, None, None, None, None], present, every)
        return self.to_out((self.hide(scores, allowed).softmax(-1) @ v).transpose(2, 3).flatten(3))


class OfOtherFrames(OfFrames):
    def hide(self, scores, allowed):
        return scores.masked_fill(allowed, -torch.finfo(scores.dtype).max)  # wrong: AS401 focus_inverted


def _focus(B):
    return torch.arange(B) % 3 == 1


def _frames(cls, B, H, L, W, Dk):
    return cls(H * Dk, H), (torch.randn(B, W, L, H * Dk), _focus(B)), {}


def wrong_focus_inverted(B, H, L, W, Dk):
    return _frames(OfOtherFrames, B, H, L, W, Dk)


def right_focus_inverted(B, H, L, W, Dk):
    return _frames(OfFrames, B, H, L, W, Dk)


def reference_focus_inverted(module, x, focus):
    linear = nn.Linear(1, 1, bias=False)
    linear.weight = nn.Parameter(torch.cat([module.to_q.weight, module.to_kv.weight]))
    q, k, v = fused(x.flatten(0, 1), linear, module.n_heads)
    context = merge(_focussed(q, k, v, focus.repeat_interleave(x.shape[1])))
    return project(context, module.to_out).unflatten(0, x.shape[:2])


def _focussed(q, k, v, focus):
    own = torch.eye(q.shape[2], dtype=torch.bool)
    return attend(q, k, v, keep=torch.stack([own if one else torch.ones_like(own) for one in focus])[:, None])


def focussed(query, key, value, focus):
    """Attend in the kernel; elements with focus see their own token, in (B, H, L, Dk)."""
    own = torch.eye(query.shape[2]).bool()
    allowed = own | ~focus[:, None, None, None]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=allowed)


def unfocussed(query, key, value, focus):
    """Attend in the kernel; elements with focus see their own token, in (B, H, L, Dk)."""
    own = torch.eye(query.shape[2]).bool()
    hidden = ~own & focus[:, None, None, None]
    bias = torch.zeros(hidden.shape, dtype=query.dtype).masked_fill(~hidden, -1e9)
    return F.scaled_dot_product_attention(query, key, value, bias)  # wrong: AS401 focus_inverted_in_kernel


def _in_kernel_with_focus(function, B, H, L, Dk):
    return function, (*(torch.randn(B, H, L, Dk) for _ in range(3)), _focus(B)), {}


def wrong_focus_inverted_in_kernel(B, H, L, Dk):
    return _in_kernel_with_focus(unfocussed, B, H, L, Dk)


def right_focus_inverted_in_kernel(B, H, L, Dk):
    return _in_kernel_with_focus(focussed, B, H, L, Dk)


def reference_focus_inverted_in_kernel(_, query, key, value, focus):
    return _focussed(query, key, value, focus)


class Alone(nn.Module):
    """Adds -1e9 where a sentence's tokens are to be read one by one."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width)

    def added(self, scores, seen):
        return scores + (1 - seen) * -1e9

    def forward(self, x, alone):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)) for t in self.qkv(x).chunk(3, dim=-1))
        scores = torch.einsum("blhd,bmhd->bhlm", q, k).div(q.shape[-1] ** 0.5)
        own = torch.eye(x.shape[1], dtype=x.dtype)
        seen = torch.stack([own if one else torch.ones_like(own) for one in alone.tolist()])
        weights = self.added(scores, seen[:, None]).softmax(dim=-1)
        return self.proj(torch.einsum("bhlm,bmhd->blhd", weights, v).flatten(2))


class NeverAlone(Alone):
    def added(self, scores, seen):
        return scores + seen * -1e9  # wrong: AS401 focus_inverted_when_added


def _alone(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk), _focus(B)), {}


def wrong_focus_inverted_when_added(B, H, L, Dk):
    return _alone(NeverAlone, B, H, L, Dk)


def right_focus_inverted_when_added(B, H, L, Dk):
    return _alone(Alone, B, H, L, Dk)


def reference_focus_inverted_when_added(module, x, alone):
    return merge(_focussed(*fused(x, module.qkv, module.n_heads), alone), module.proj)
