"""AS204: the scale is applied to the weights after the softmax, and the scores have none."""

import math

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from tests.mutants.pairs.as4_reference import attend, fused, heads, merge, visible

SIZES = ({"B": 4, "H": 5, "L": 9, "Dk": 6}, {"B": 5, "H": 3, "L": 11, "Dk": 8}, {"B": 2, "H": 4, "L": 13, "Dk": 7})
CROSS = (
    {"B": 4, "H": 3, "Lq": 7, "Lk": 11, "Dk": 5},
    {"B": 2, "H": 5, "Lq": 9, "Lk": 6, "Dk": 8},
    {"B": 3, "H": 4, "Lq": 8, "Lk": 10, "Dk": 6},
)
PAIRS = [
    ("AS204", "vit_scale_behind_softmax", *SIZES),
    ("AS204", "decoder_divides_weights", *SIZES),
    ("AS204", "text_weights_in_einsum", *CROSS),
]


class Attention(nn.Module):
    """Self-attention of a vision transformer."""

    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads, self.scale = n_heads, (dim // n_heads) ** -0.5
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.attn_drop = nn.Dropout(0.1)

    def weights(self, q, k):
        return ((q @ k.transpose(-2, -1)) * self.scale).softmax(dim=-1)

    def forward(self, x):
        q, k, v = rearrange(self.qkv(x), "b n (three h d) -> three b h n d", three=3, h=self.n_heads)
        attn = self.attn_drop(self.weights(q, k))
        return self.proj(rearrange(attn @ v, "b h n d -> b n (h d)"))


class AttentionScaledLate(Attention):
    def weights(self, q, k):
        attn = (q @ k.transpose(-2, -1)).softmax(dim=-1)
        return attn * self.scale  # wrong: AS204 vit_scale_behind_softmax


def _self(cls, B, H, L, Dk):
    return cls(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def wrong_vit_scale_behind_softmax(B, H, L, Dk):
    return _self(AttentionScaledLate, B, H, L, Dk)


def right_vit_scale_behind_softmax(B, H, L, Dk):
    return _self(Attention, B, H, L, Dk)


def reference_vit_scale_behind_softmax(module, x):
    return merge(attend(*fused(x, module.qkv, module.n_heads)), module.proj)


class Block(nn.Module):
    """A decoder's block, whose heads are folded into the batch."""

    def __init__(self, width, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.c_proj = (nn.Linear(width, width) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def fold(self, x):
        return x.view(x.size(0), x.size(1), self.n_heads, -1).transpose(1, 2).flatten(0, 1)

    def probabilities(self, scores, width):
        return F.softmax(scores / math.sqrt(width), dim=-1)

    def attend(self, x):
        q, k, v = self.fold(self.query(x)), self.fold(self.key(x)), self.fold(self.value(x))
        later = torch.ones(x.size(1), x.size(1), dtype=torch.bool).triu(1)
        scores = torch.bmm(q, k.transpose(1, 2)).masked_fill(later, -math.inf)
        weights = F.dropout(self.probabilities(scores, q.size(-1)), 0.1, training=self.training)
        context = torch.bmm(weights, v)
        return self.c_proj(context.unflatten(0, (-1, self.n_heads)).transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attend(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class BlockDividingWeights(Block):
    def probabilities(self, scores, width):
        return F.softmax(scores, dim=-1) / math.sqrt(width)  # wrong: AS204 decoder_divides_weights


class Decoder(nn.Module):
    def __init__(self, block, width, n_heads):
        super().__init__()
        self.blocks = nn.ModuleList(block(width, n_heads) for _ in range(2))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.ln_f(x)


def _decoder(block, B, H, L, Dk):
    return Decoder(block, H * Dk, H), (torch.randn(B, L, H * Dk),), {}, ["causal"]


def wrong_decoder_divides_weights(B, H, L, Dk):
    return _decoder(BlockDividingWeights, B, H, L, Dk)


def right_decoder_divides_weights(B, H, L, Dk):
    return _decoder(Block, B, H, L, Dk)


def reference_decoder_divides_weights(module, x):
    keep = visible(x.shape[1], x.shape[1])
    for block in module.blocks:
        normed = block.ln_1(x)
        q, k, v = (heads(normed, linear, block.n_heads) for linear in (block.query, block.key, block.value))
        x = x + merge(attend(q, k, v, keep), block.c_proj)
        x = x + block.mlp(block.ln_2(x))
    return module.ln_f(x)


def read_text(pixels, text, wq, wk, wv, wo, training=False):
    """Read a text from pixels, both B L D, with four weights of (H, Dk, D)."""
    q = torch.einsum("bqi,hdi->bqhd", pixels, wq)
    k, v = torch.einsum("bki,hdi->bkhd", text, wk), torch.einsum("bki,hdi->bkhd", text, wv)
    weights = torch.einsum("bqhd,bkhd->bqkh", q, k).mul(q.shape[-1] ** -0.5).softmax(dim=2)
    weights = F.dropout(weights, 0.2, training)
    return pixels + torch.einsum("bqhd,hdi->bqi", torch.einsum("bqkh,bkhd->bqhd", weights, v), wo)


def read_text_weakly(pixels, text, wq, wk, wv, wo, training=False):
    """Read a text from pixels, both B L D, with four weights of (H, Dk, D)."""
    q = torch.einsum("bqi,hdi->bqhd", pixels, wq)
    k, v = torch.einsum("bki,hdi->bkhd", text, wk), torch.einsum("bki,hdi->bkhd", text, wv)
    weights = torch.einsum("bqhd,bkhd->bqkh", q, k).softmax(dim=2)
    weights = weights * q.shape[-1] ** -0.5  # wrong: AS204 text_weights_in_einsum
    weights = F.dropout(weights, 0.2, training)
    return pixels + torch.einsum("bqhd,hdi->bqi", torch.einsum("bqkh,bkhd->bqhd", weights, v), wo)


def _text(function, B, H, Lq, Lk, Dk):
    D = H * Dk
    weights = torch.randn(4, H, Dk, D) / D**0.5
    return function, (torch.randn(B, Lq, D), torch.randn(B, Lk, D), *weights), {}


def wrong_text_weights_in_einsum(B, H, Lq, Lk, Dk):
    return _text(read_text_weakly, B, H, Lq, Lk, Dk)


def right_text_weights_in_einsum(B, H, Lq, Lk, Dk):
    return _text(read_text, B, H, Lq, Lk, Dk)


def reference_text_weights_in_einsum(_, pixels, text, wq, wk, wv, wo):
    out = pixels.clone()
    for one_q, one_k, one_v, one_o in zip(wq, wk, wv, wo, strict=True):
        scores = (pixels @ one_q.T) @ (text @ one_k.T).mT / len(one_q) ** 0.5
        weights = scores.exp() / scores.exp().sum(-1, keepdim=True)
        out += weights @ (text @ one_v.T) @ one_o
    return out
