"""AS501 in attention to means of blocks of keys, beside a causal window of tokens."""

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, heads, merge, visible

SIZES = (
    {"B": 3, "H": 5, "L": 14, "Dk": 6},
    {"B": 5, "H": 2, "L": 17, "Dk": 7},
    {"B": 2, "H": 3, "L": 13, "Dk": 8},
)
BLOCK, WINDOW = 4, 5
PAIRS = [
    ("AS501", "blocks_seen_from_their_first_token", *SIZES),
]


class Compressed(nn.Module):
    """Two attentions with gates: to the mean of each full block, and to the last few tokens."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.gates = nn.Linear(width, 2 * heads)

    def weights(self, q, k, hidden):
        """Queries without any visible key get no weights."""
        scores = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).masked_fill(hidden, -torch.inf)
        return scores.softmax(dim=-1).masked_fill(hidden, 0)

    def seen_from(self, blocks):
        """The first query that sees each block is its last token."""
        return blocks * BLOCK + BLOCK - 1

    def means(self, q, k, v):
        k, v = (t.unfold(2, BLOCK, BLOCK).mean(dim=-1) for t in (k, v))
        tokens, blocks = torch.arange(q.shape[2]), torch.arange(k.shape[2])
        hidden = tokens[:, None] < self.seen_from(blocks)  # wrong: AS501 blocks_seen_from_their_first_token
        return self.weights(q, k, hidden) @ v

    def near(self, q, k, v):
        distance = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2])
        return self.weights(q, k, (distance < 0) | (distance >= WINDOW)) @ v

    def forward(self, x):
        q, k, v = (w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in (self.to_q, self.to_k, self.to_v))
        first, second = self.gates(x).sigmoid().transpose(1, 2).unsqueeze(-1).chunk(2, dim=1)
        context = first * self.means(q, k, v) + second * self.near(q, k, v)
        return self.to_out(context.transpose(1, 2).flatten(2))


class CompressedTooEarly(Compressed):
    def seen_from(self, blocks):
        return blocks * BLOCK


def _compressed(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_blocks_seen_from_their_first_token(B, H, L, Dk):
    return _compressed(CompressedTooEarly, B, H, L, Dk)


def right_blocks_seen_from_their_first_token(B, H, L, Dk):
    return _compressed(Compressed, B, H, L, Dk)


def reference_blocks_seen_from_their_first_token(module, x):
    q, k, v = (heads(x, linear, module.heads) for linear in (module.to_q, module.to_k, module.to_v))
    length = x.shape[1]
    starts = range(0, length - BLOCK + 1, BLOCK)
    of_blocks = (torch.stack([t[:, :, i : i + BLOCK].sum(2) / BLOCK for i in starts], dim=2) for t in (k, v))
    keep = torch.tensor([[i >= start + BLOCK - 1 for start in starts] for i in range(length)])
    gates = 1 / (1 + torch.exp(-(x @ module.gates.weight.T + module.gates.bias)))
    gates = gates.unflatten(-1, (2, module.heads)).permute(2, 0, 3, 1).unsqueeze(-1)
    both = gates[0] * attend(q, *of_blocks, keep), gates[1] * attend(q, k, v, visible(length, length, WINDOW))
    return merge(sum(both), module.to_out)
