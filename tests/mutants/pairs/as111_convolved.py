"""AS111: keys and values come from a strided convolution, whose channels are first, and are as many as features."""

import torch
import torch.nn.functional as F
from torch import nn

from tests.mutants.plain import multihead

SIZES = ({"B": 4, "H": 5, "L": 13, "Dk": 7}, {"B": 5, "H": 4, "L": 15, "Dk": 8}, {"B": 6, "H": 7, "L": 9, "Dk": 5})
MAPS = (
    {"B": 4, "H": 5, "Dk": 6, "Lq": 2, "Lk": 12},
    {"B": 5, "H": 3, "Dk": 10, "Lq": 2, "Lk": 20},
    {"B": 6, "H": 7, "Dk": 4, "Lq": 2, "Lk": 16},
)
PAIRS = [
    ("AS111", "strided_over_time", *SIZES),
    ("AS111", "reduced_map", *MAPS),
    ("AS111", "pooled_pairs", *SIZES),
]


class Strided(nn.Module):
    """Keys and values of a speech encoder come from every second frame."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key = nn.Conv1d(dim, dim, 3, stride=2, padding=1)
        self.value = nn.Conv1d(dim, dim, 3, stride=2, padding=1)
        self.out = nn.Linear(dim, dim)

    def split(self, t):
        return t.unflatten(1, (self.heads, -1)).mT

    def forward(self, x):
        q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (self.split(conv(x.mT)) for conv in (self.key, self.value))
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class WrongStrided(Strided):
    def split(self, t):
        return t.view(len(t), self.heads, -1, t.shape[1] // self.heads)  # wrong: AS111 strided_over_time


def wrong_strided_over_time(B, H, L, Dk):
    return WrongStrided(H * Dk, H), (torch.randn(B, L, H * Dk),)


def right_strided_over_time(B, H, L, Dk):
    return Strided(H * Dk, H), (torch.randn(B, L, H * Dk),)


def reference_strided_over_time(module, x):
    k, v = (conv(x.transpose(1, 2)).transpose(1, 2) for conv in (module.key, module.value))
    return module.out(multihead(module.query(x), k, v, module.heads))


class Reduced(nn.Module):
    """Each pixel of a map attends to the patches of 2 by 2 pixels."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.q = nn.Conv2d(dim, dim, 1)
        self.kv = nn.Conv2d(dim, 2 * dim, 2, stride=2)

    def of_heads(self, t):
        return t.flatten(2).view(len(t), self.heads, t.shape[1] // self.heads, -1).permute(0, 1, 3, 2)

    def forward(self, image):
        q = self.q(image).flatten(2).view(len(image), self.heads, image.shape[1] // self.heads, -1).permute(0, 1, 3, 2)
        k, v = map(self.of_heads, self.kv(image).chunk(2, dim=1))
        weights = torch.einsum("bhid,bhjd->bhij", q, k).mul(self.scale).softmax(dim=-1)
        out = torch.einsum("bhij,bhjd->bhdi", weights, v)
        return out.reshape(image.shape)


class WrongReduced(Reduced):
    def of_heads(self, t):
        return t.reshape(len(t), self.heads, -1, t.shape[1] // self.heads)  # wrong: AS111 reduced_map


def wrong_reduced_map(B, H, Dk, Lq, Lk):
    return WrongReduced(H * Dk, H), (torch.randn(B, H * Dk, Lq, Lk),)


def right_reduced_map(B, H, Dk, Lq, Lk):
    return Reduced(H * Dk, H), (torch.randn(B, H * Dk, Lq, Lk),)


def reference_reduced_map(module, image):
    q, k, v = (t.flatten(2).mT for t in (module.q(image), *module.kv(image).chunk(2, 1)))
    return multihead(q, k, v, module.heads).mT.reshape(image.shape)


def pooled_pairs(of_heads):
    """Return attention whose keys and values are projected from the means of neighbours, channels first."""

    def attend(x, w_q, w_k, w_v):
        heads, width = w_q.shape[:2]
        q = torch.einsum("bld,hed->bhle", x, w_q)
        means = F.avg_pool1d(x.transpose(1, 2), 2, ceil_mode=True)
        k, v = (of_heads(F.conv1d(means, w.flatten(0, 1)[:, :, None]), heads, width) for w in (w_k, w_v))
        scores = torch.matmul(q, k.transpose(-1, -2)) / width**0.5
        return torch.matmul(F.softmax(scores, dim=-1), v)

    return attend


def _pooled_pairs(of_heads, B, H, L, Dk):
    weights = (torch.randn(H, Dk, H * Dk) * (H * Dk) ** -0.5 for _ in range(3))
    return pooled_pairs(of_heads), (torch.randn(B, L, H * Dk), *weights)


def wrong_pooled_pairs(B, H, L, Dk):
    def of_heads(t, heads, width):
        return torch.reshape(t, (t.size(0), heads, t.size(2), width))  # wrong: AS111 pooled_pairs

    return _pooled_pairs(of_heads, B, H, L, Dk)


def right_pooled_pairs(B, H, L, Dk):
    def of_heads(t, heads, width):
        return torch.reshape(t, (t.size(0), heads, width, t.size(2))).transpose(2, 3)

    return _pooled_pairs(of_heads, B, H, L, Dk)


def reference_pooled_pairs(attend, x, w_q, w_k, w_v):
    means = torch.stack([part.mean(1) for part in x.split(2, 1)], 1)
    q, k, v = (t @ w.flatten(0, 1).T for t, w in ((x, w_q), (means, w_k), (means, w_v)))
    out = multihead(q, k, v, len(w_q))
    return out.unflatten(-1, (len(w_q), -1)).transpose(1, 2)
