"""A softmax over blocks of keys, in whose denominator each head has a learned sink without a key."""

import torch
from torch import nn

from tests.mutants.plain import join, softmax, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 9, "Dk": 7})
CROSS = ({"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3}, {"B": 3, "H": 2, "Lq": 8, "Lk": 6, "Dk": 4})
UNUSUAL = [
    ("sinks_of_merged_blocks", *CROSS),
    ("sinks_in_a_module", *SIZES),
]


def blockwise(q, k, v, sinks, block_size):
    """Queries, keys and values are (batch, heads, tokens, features), and there is one sink for each head."""
    peak = q.new_full(q.shape[:-1], -torch.inf)
    total, context = torch.zeros_like(peak), q.new_zeros(*q.shape[:-1], v.shape[-1])
    for start in range(0, k.shape[2], block_size):
        keys, values = k[:, :, start : start + block_size], v[:, :, start : start + block_size]
        scores = torch.einsum("bhqd,bhkd->bhqk", q, keys) * q.shape[-1] ** -0.5
        higher = torch.maximum(peak, scores.amax(dim=-1))
        shrink, p = torch.exp(peak - higher), torch.exp(scores - higher.unsqueeze(-1))
        total = total * shrink + p.sum(dim=-1)
        context = context * shrink.unsqueeze(-1) + torch.einsum("bhqk,bhkd->bhqd", p, values)
        peak = higher
    total = total + torch.exp(sinks[:, None] - peak)
    return context / total.unsqueeze(-1)


def with_sinks(q, k, v, sinks):
    """The same by one softmax, which the sink takes part in."""
    scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
    column = sinks[:, None, None].expand(*scores.shape[:-1], 1)
    return softmax(torch.cat([scores, column], dim=-1))[..., :-1] @ v


def case_sinks_of_merged_blocks(B, H, Lq, Lk, Dk):
    return blockwise, (torch.randn(B, H, Lq, Dk), *torch.randn(2, B, H, Lk, Dk), torch.randn(H), 3), {}


def reference_sinks_of_merged_blocks(function, q, k, v, sinks, block_size):
    return with_sinks(q, k, v, sinks)


class Sinks(nn.Module):
    def __init__(self, width, heads, block_size):
        super().__init__()
        self.heads, self.block_size = heads, block_size
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.sinks = nn.Parameter(torch.randn(heads))

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        m = torch.full_like(q[..., :1], -1e30)
        denominator, acc = torch.zeros_like(m), torch.zeros_like(v)
        for kb, vb in zip(k.split(self.block_size, dim=2), v.split(self.block_size, dim=2), strict=True):
            s = q @ kb.mT / q.shape[-1] ** 0.5
            m_new = torch.maximum(m, s.max(dim=-1, keepdim=True).values)
            alpha, p = (m - m_new).exp(), (s - m_new).exp()
            denominator, acc, m = denominator * alpha + p.sum(-1, keepdim=True), acc * alpha + p @ vb, m_new
        denominator = denominator + (self.sinks.view(1, -1, 1, 1) - m).exp()
        return self.out((acc / denominator).transpose(1, 2).flatten(2))


def case_sinks_in_a_module(B, H, L, Dk):
    return Sinks(H * Dk, H, 4), (torch.randn(B, L, H * Dk),), {}


def reference_sinks_in_a_module(module, x):
    q, k, v = (split(t, module.heads) for t in module.qkv(x).chunk(3, dim=-1))
    return module.out(join(with_sinks(q, k, v, module.sinks)))
