"""AS714 where keys have scores for distances, which a gather arranges."""

import torch
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, merge

SIZES = ({"B": 4, "H": 5, "L": 7, "Dk": 6}, {"B": 5, "H": 4, "L": 9, "Dk": 8}, {"B": 6, "H": 7, "L": 5, "Dk": 4})
PAIRS = [("AS714", "key_scores_not_transposed", *SIZES)]


class KeysToPositions(nn.Module):
    """A key's score for the distance to each query is added, as in DeBERTa."""

    def __init__(self, width, n_heads, longest=64):
        super().__init__()
        self.n_heads, self.longest = n_heads, longest
        self.qkv = nn.Linear(width, 3 * width)
        self.positions = nn.Parameter(torch.randn(n_heads, 2 * longest, width // n_heads))

    def of_pairs(self, scores, index):
        return scores.gather(-1, index.expand(*scores.shape[:-1], -1)).mT

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.n_heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        at = torch.arange(x.shape[1])
        index = at - at[:, None] + self.longest
        by_position = self.of_pairs(k @ self.positions.mT, index)
        weights = ((q @ k.mT + by_position) / (2 * q.shape[-1]) ** 0.5).softmax(dim=-1)
        return (weights @ v).transpose(1, 2).flatten(2)


class KeysInRows(KeysToPositions):
    def of_pairs(self, scores, index):
        return scores.gather(-1, index.expand(*scores.shape[:-1], -1))  # wrong: AS714 key_scores_not_transposed


def _plain(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_key_scores_not_transposed(B, H, L, Dk):
    return _plain(KeysInRows, B, H, L, Dk)


def right_key_scores_not_transposed(B, H, L, Dk):
    return _plain(KeysToPositions, B, H, L, Dk)


def reference_key_scores_not_transposed(module, x):
    q, k, v = fused(x, module.qkv, module.n_heads)
    length = x.shape[1]
    rows = [
        [(k[:, :, j] * module.positions[:, i - j + module.longest]).sum(-1) for j in range(length)]
        for i in range(length)
    ]
    scores = torch.einsum("bhid,bhjd->bhij", q, k) + torch.stack([torch.stack(row, -1) for row in rows], -2)
    zero = torch.zeros_like(q)
    return merge(attend(zero, zero, v, bias=scores / (2 * q.shape[-1]) ** 0.5))
