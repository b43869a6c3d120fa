"""AS303: the mask is applied after the softmax."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.plain import attention, causal, multihead

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 7, "Dk": 4}, {"B": 4, "H": 3, "L": 9, "Dk": 8})
CROSS = (
    {"B": 2, "H": 4, "Lq": 5, "Lk": 7, "Dk": 3},
    {"B": 3, "H": 2, "Lq": 8, "Lk": 4, "Dk": 6},
    {"B": 5, "H": 3, "Lq": 4, "Lk": 9, "Dk": 6},
)
WINDOW = (
    {"B": 2, "H": 4, "L": 6, "Dk": 5, "W": 3},
    {"B": 5, "H": 2, "L": 7, "Dk": 4, "W": 3},
    {"B": 3, "H": 4, "L": 9, "Dk": 8, "W": 2},
)
PAIRS = [
    ("AS303", "causal_weights", *SIZES),
    ("AS303", "padding_multiplied", *CROSS),
    ("AS303", "window_multiplied", *WINDOW),
    ("AS303", "folded_in_place", *CROSS),
]


class CausalAttention(nn.Module):
    """Causal attention with a registered mask."""

    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.register_buffer("bias", torch.tril(torch.ones(block_size, block_size)).view(1, 1, block_size, block_size))
        self.attn_dropout = nn.Dropout(0.1)

    def weights(self, att, T):
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        return F.softmax(att, dim=-1)

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in self.c_attn(x).split(C, dim=2))
        att = self.attn_dropout(self.weights(q @ k.transpose(-2, -1) / math.sqrt(k.size(-1)), T))
        return self.c_proj((att @ v).transpose(1, 2).contiguous().view(B, T, C))


class CausalAttentionAfter(CausalAttention):
    def weights(self, att, T):
        att = F.softmax(att, dim=-1)
        return att.masked_fill(self.bias[:, :, :T, :T] == 0, 0.0)  # wrong: AS303 causal_weights


def wrong_causal_weights(B, H, L, Dk):
    return CausalAttentionAfter(H * Dk, H, L), (torch.randn(B, L, H * Dk),), {}


def right_causal_weights(B, H, L, Dk):
    return CausalAttention(H * Dk, H, L), (torch.randn(B, L, H * Dk),), {}


def reference_causal_weights(module, x):
    q, k, v = module.c_attn(x).chunk(3, dim=-1)
    return module.c_proj(multihead(q, k, v, module.n_head, keep=causal(x.shape[1], x.shape[1])))


def padding(B, Lk):
    """Sequences of differing lengths; True where a key is real."""
    return torch.arange(Lk) < Lk - torch.arange(B).remainder(Lk - 1)[:, None]


class PaddedCross(nn.Module):
    """Cross-attention; `mask` is (B, Lk), True where a key is real."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.to_q, self.to_kv, self.to_out = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim), nn.Linear(dim, dim)

    def weights(self, scores, mask):
        return scores.masked_fill(~mask[:, None, None, :], -torch.inf).softmax(dim=-1)

    def forward(self, x, memory, mask):
        q = self.to_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.to_kv(memory).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        weights = self.weights(q @ k.mT / math.sqrt(q.shape[-1]), mask)
        return self.to_out((weights @ v).transpose(1, 2).flatten(2))


class PaddedCrossAfter(PaddedCross):
    def weights(self, scores, mask):
        return scores.softmax(dim=-1) * mask[:, None, None, :]  # wrong: AS303 padding_multiplied


def _padded(B, H, Lq, Lk, Dk):
    return (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {"mask": padding(B, Lk)}, ["mask=keep"]


def wrong_padding_multiplied(B, H, Lq, Lk, Dk):
    return PaddedCrossAfter(H * Dk, H), *_padded(B, H, Lq, Lk, Dk)


def right_padding_multiplied(B, H, Lq, Lk, Dk):
    return PaddedCross(H * Dk, H), *_padded(B, H, Lq, Lk, Dk)


def reference_padding_multiplied(module, x, memory, mask):
    k, v = module.to_kv(memory).chunk(2, dim=-1)
    return module.to_out(multihead(module.to_q(x), k, v, module.heads, keep=mask[:, None, None]))


class LocalAttention(nn.Module):
    """Each token sees the last `window` tokens, itself among them."""

    def __init__(self, heads, depth, window):
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(heads * depth, 3 * heads * depth, bias=False)

    def band(self, n):
        distance = torch.arange(n)[:, None] - torch.arange(n)
        return (distance >= 0) & (distance < self.window)

    def weights(self, sim):
        return torch.where(self.band(sim.shape[-1]), sim, -torch.inf).softmax(dim=-1)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.qkv(x).chunk(3, dim=-1))
        sim = torch.einsum("bihd,bjhd->bhij", q, k) * q.shape[-1] ** -0.5
        return torch.einsum("bhij,bjhd->bihd", self.weights(sim), v).flatten(2)


class LocalAttentionAfter(LocalAttention):
    def weights(self, sim):
        return sim.softmax(dim=-1) * self.band(sim.shape[-1])  # wrong: AS303 window_multiplied


def wrong_window_multiplied(B, H, L, Dk, W):
    return LocalAttentionAfter(H, Dk, W), (torch.randn(B, L, H * Dk),), {}


def right_window_multiplied(B, H, L, Dk, W):
    return LocalAttention(H, Dk, W), (torch.randn(B, L, H * Dk),), {}


def reference_window_multiplied(module, x):
    n = x.shape[1]
    keep = torch.tensor([[i - module.window < j <= i for j in range(n)] for i in range(n)])
    return multihead(*module.qkv(x).chunk(3, dim=-1), module.heads, keep=keep)


def attend(q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk), folded; `key_padding_mask` is (B, Lk), True where there is no token."""
    bsz, heads, tgt_len, _ = q.shape
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    attn_weights = torch.bmm(q * q.shape[-1] ** -0.5, k.transpose(1, 2)).view(bsz, heads, tgt_len, -1)
    attn_weights.masked_fill_(key_padding_mask[:, None, None], float("-inf"))
    attn_probs = F.softmax(attn_weights, dim=-1)
    return torch.bmm(attn_probs.flatten(0, 1), v).unflatten(0, (bsz, heads))


def attend_after(q: Tensor, k: Tensor, v: Tensor, key_padding_mask: Tensor) -> Tensor:
    """Attend in (B, H, L, Dk), folded; `key_padding_mask` is (B, Lk), True where there is no token."""
    bsz, heads, tgt_len, _ = q.shape
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    attn_weights = torch.bmm(q * q.shape[-1] ** -0.5, k.transpose(1, 2)).view(bsz, heads, tgt_len, -1)
    attn_probs = F.softmax(attn_weights, dim=-1)
    attn_probs.masked_fill_(key_padding_mask[:, None, None], 0)  # wrong: AS303 folded_in_place
    return torch.bmm(attn_probs.flatten(0, 1), v).unflatten(0, (bsz, heads))


def _heads(B, H, Lq, Lk, Dk):
    q, k, v = torch.randn(B, H, Lq, Dk), torch.randn(B, H, Lk, Dk), torch.randn(B, H, Lk, Dk)
    return q, k, v, ~padding(B, Lk)


def wrong_folded_in_place(B, H, Lq, Lk, Dk):
    return attend_after, _heads(B, H, Lq, Lk, Dk), {}


def right_folded_in_place(B, H, Lq, Lk, Dk):
    return attend, _heads(B, H, Lq, Lk, Dk), {}


def reference_folded_in_place(function, q, k, v, key_padding_mask):
    return attention(q, k, v, keep=~key_padding_mask[:, None, None])
