"""AS104: a normalisation takes its statistics over the tokens."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.mutants.plain import attention, join, multihead, split

SIZES = ({"B": 2, "H": 4, "L": 6, "Dk": 5}, {"B": 5, "H": 2, "L": 8, "Dk": 4}, {"B": 4, "H": 3, "L": 5, "Dk": 7})
CROSS = (
    {"B": 2, "H": 3, "Lq": 5, "Lk": 7, "Dk": 6},
    {"B": 4, "H": 2, "Lq": 8, "Lk": 5, "Dk": 7},
    {"B": 3, "H": 5, "Lq": 4, "Lk": 9, "Dk": 6},
)
PAIRS = [
    ("AS104", "cosine_default_axis", *CROSS),
    ("AS104", "query_norm_in_heads", *SIZES),
    ("AS104", "layer_norm_of_plane", *SIZES),
    ("AS104", "rms_by_hand", *SIZES),
    ("AS104", "annotated_norm", *SIZES),
]


class CosineCross(nn.Module):
    """Cross-attention of one unit vector per token, with a temperature that is learned."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.q, self.kv = nn.Linear(dim, dim), nn.Linear(dim, 2 * dim)
        self.temperature = nn.Parameter(torch.tensor(4.0))

    def unit(self, x):
        return F.normalize(x, dim=-1)

    def forward(self, x, memory):
        q = self.unit(self.q(x))
        k, v = self.kv(memory).chunk(2, dim=-1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, self.unit(k), v))
        attn = (q @ k.transpose(-2, -1) * self.temperature).softmax(dim=-1)
        return (attn @ v).transpose(1, 2).flatten(2)


class CosineCrossDefault(CosineCross):
    def unit(self, x):
        return F.normalize(x)  # wrong: AS104 cosine_default_axis


def wrong_cosine_default_axis(B, H, Lq, Lk, Dk):
    return CosineCrossDefault(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def right_cosine_default_axis(B, H, Lq, Lk, Dk):
    return CosineCross(H * Dk, H), (torch.randn(B, Lq, H * Dk), torch.randn(B, Lk, H * Dk)), {}


def reference_cosine_default_axis(module, x, memory):
    q, (k, v) = module.q(x), module.kv(memory).chunk(2, dim=-1)
    q, k = (t / t.square().sum(-1, keepdim=True).sqrt() for t in (q, k))
    return multihead(q, k, v, module.heads, scale=module.temperature)


def normed_heads(x: Tensor, w: Tensor, heads: int, g: Tensor) -> Tensor:
    """Self-attention with query and key normed per head; `w` is (3*D, D)."""
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in F.linear(x, w).chunk(3, dim=-1))
    q = F.normalize(q, p=2.0, dim=3) * g
    k = F.normalize(k, p=2.0, dim=3) * g
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def normed_positions(x: Tensor, w: Tensor, heads: int, g: Tensor) -> Tensor:
    """Self-attention with query and key normed per head; `w` is (3*D, D)."""
    q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in F.linear(x, w).chunk(3, dim=-1))
    q = F.normalize(q, p=2.0, dim=2) * g  # wrong: AS104 query_norm_in_heads
    k = F.normalize(k, p=2.0, dim=3) * g
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def _functional(B, H, L, Dk):
    D = H * Dk
    return torch.randn(B, L, D), torch.randn(3 * D, D), H, 2 * torch.rand(Dk) + 1


def wrong_query_norm_in_heads(B, H, L, Dk):
    return normed_positions, _functional(B, H, L, Dk), {}


def right_query_norm_in_heads(B, H, L, Dk):
    return normed_heads, _functional(B, H, L, Dk), {}


def reference_query_norm_in_heads(function, x, w, heads, g):
    q, k, v = (split(t, heads) for t in (x @ w.T).chunk(3, dim=-1))
    q, k = (t / t.square().sum(-1, keepdim=True).sqrt() * g for t in (q, k))
    return join(attention(q, k, v))


class Block(nn.Module):
    """Pre-norm block; norms are named after their inputs."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.eps = heads, 1e-5
        self.gain, self.bias = nn.Parameter(torch.rand(dim) + 0.5), nn.Parameter(torch.randn(dim))
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def norm(self, x):
        return F.layer_norm(x, x.shape[-1:], eps=self.eps) * self.gain + self.bias

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attn = ((q @ k.mT) / math.sqrt(q.shape[-1])).softmax(dim=-1)
        x = x + self.proj((attn @ v).transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.norm(x))))


def plain_block(module, x, norm):
    x = x + module.proj(multihead(*module.qkv(norm(x)).chunk(3, dim=-1), module.heads))
    return x + module.fc2(F.gelu(module.fc1(norm(x))))


def _standardised(x, eps):
    var, mean = torch.var_mean(x, dim=-1, correction=0, keepdim=True)
    return (x - mean) / torch.sqrt(var + eps)


def right_block(B, H, L, Dk):
    return Block(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


class PlaneBlock(Block):
    def norm(self, x):
        return F.layer_norm(x, x.shape[1:], eps=self.eps) * self.gain + self.bias  # wrong: AS104 layer_norm_of_plane


def wrong_layer_norm_of_plane(B, H, L, Dk):
    return PlaneBlock(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


right_layer_norm_of_plane = right_block


def reference_layer_norm_of_plane(module, x):
    return plain_block(module, x, lambda t: _standardised(t, module.eps) * module.gain + module.bias)


class RMSBlock(Block):
    """The block with a root-mean-square norm."""

    def norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.gain


class RMSBlockOverTokens(RMSBlock):
    def norm(self, x):
        return x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + self.eps) * self.gain  # wrong: AS104 rms_by_hand


def wrong_rms_by_hand(B, H, L, Dk):
    return RMSBlockOverTokens(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def right_rms_by_hand(B, H, L, Dk):
    return RMSBlock(H * Dk, H), (torch.randn(B, L, H * Dk),), {}


def reference_rms_by_hand(module, x):
    return plain_block(module, x, lambda t: F.rms_norm(t, t.shape[-1:], module.gain, module.eps))


class LayerNorm(nn.Module):
    """As written out in tutorials: the sample's deviation, and an eps beside it."""

    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2, self.b_2 = nn.Parameter(torch.rand(features) + 0.5), nn.Parameter(torch.randn(features))
        self.eps = eps

    def forward(self, x):
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2


class TokensNorm(LayerNorm):
    def forward(self, x):
        mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True)  # wrong: AS104 annotated_norm
        return self.a_2 * (x - mean) / (std + self.eps) + self.b_2


class EncoderLayer(nn.Module):
    """Post-norm: the attention of torch, the norm of the file."""

    def __init__(self, size, heads, norm):
        super().__init__()
        self.self_attn = nn.MultiheadAttention(size, heads, batch_first=True)
        self.norm = norm(size)

    def forward(self, x):
        return self.norm(x + self.self_attn(x, x, x, need_weights=False)[0])


def wrong_annotated_norm(B, H, L, Dk):
    return EncoderLayer(H * Dk, H, TokensNorm), (torch.randn(B, L, H * Dk),), {}


def right_annotated_norm(B, H, L, Dk):
    return EncoderLayer(H * Dk, H, LayerNorm), (torch.randn(B, L, H * Dk),), {}


def reference_annotated_norm(module, x):
    attn, norm = module.self_attn, module.norm
    q, k, v = F.linear(x, attn.in_proj_weight, attn.in_proj_bias).chunk(3, dim=-1)
    x = x + attn.out_proj(multihead(q, k, v, attn.num_heads))
    deviation = ((x - x.mean(-1, keepdim=True)).square().sum(-1, keepdim=True) / (x.shape[-1] - 1)).sqrt()
    return norm.a_2 * (x - x.mean(-1, keepdim=True)) / (deviation + norm.eps) + norm.b_2
