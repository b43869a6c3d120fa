"""Attention code in several styles, whose arguments attnshape has to work out."""

import argparse
import math
from dataclasses import dataclass
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn


class Plain(nn.Module):
    def __init__(self, d_model, n_heads, dropout):
        super().__init__()
        assert 0 <= dropout < 1
        self.n_heads = n_heads
        self.qkv = nn.Linear(d_model, 3 * d_model)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x, mask=None):
        B, T, C = x.shape
        q, k, v = self.qkv(x).view(B, T, 3, self.n_heads, C // self.n_heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(B, T, C))


class ByDefault(Plain):
    def __init__(self, d_model=512, n_heads=8, dropout=0.1):
        super().__init__(d_model, n_heads, dropout)


@dataclass
class ModelConfig:
    width: int
    num_heads: int = 12
    num_kv_heads: int = 4
    head_dim: int | None = None
    name: str = "tiny"
    norm_eps: float = 1e-5


class Grouped(nn.Module):
    def __init__(self, config: ModelConfig, layer_idx: int):
        super().__init__()
        self.config = config
        self.depth = config.head_dim or config.width // config.num_heads
        self.q_proj = nn.Linear(config.width, config.num_heads * self.depth)
        self.k_proj = nn.Linear(config.width, config.num_kv_heads * self.depth)
        self.v_proj = nn.Linear(config.width, config.num_kv_heads * self.depth)

    def forward(self, hidden_states, attention_mask):
        shape = (*hidden_states.shape[:-1], -1, self.depth)
        q, k, v = (p(hidden_states).view(shape).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj))
        k, v = (t.repeat_interleave(self.config.num_heads // self.config.num_kv_heads, 1) for t in (k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attention_mask)


class Nameless(nn.Module):
    """Reads its sizes from an object that no class describes."""

    def __init__(self, args):
        super().__init__()
        self.inner = Plain(args.n_embd, args.n_head, args.dropout)
        self.bound = args.block_size

    def forward(self, x):
        assert x.size(1) <= self.bound
        return self.inner(x)


class LanguageModel(nn.Module):
    def __init__(self, vocab_size, dim, heads, depth, max_len):
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, dim)
        self.positions = nn.Embedding(max_len, dim)
        self.layers = nn.ModuleList(Plain(dim, heads, 0.1) for _ in range(depth))

    def forward(self, x):
        x = self.tokens(x) + self.positions.weight[: x.shape[1]]
        for layer in self.layers:
            x = x + layer(x)
        return x


class OfMaps(nn.Module):
    def __init__(self, channels, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)

    def forward(self, x):
        b, c, h, w = x.shape
        q, k, v = self.qkv(x).view(b, 3, self.heads, c // self.heads, h * w).unbind(1)
        weights = (q.mT @ k * (c // self.heads) ** -0.5).softmax(-1)
        return (v @ weights.mT).reshape(b, c, h, w)


MASKS = {}


class Remembers(Plain):
    def forward(self, x):
        length = x.shape[1]
        if "mask" not in MASKS:
            MASKS["mask"] = torch.ones(100, 100).tril().bool()
        return super().forward(x, MASKS["mask"][:length, :length])


class OfWindows(OfMaps):
    def __init__(self, channels, heads=4, window_size=5):
        super().__init__(channels, heads)
        self.window = window_size

    def forward(self, x):
        b, c, h, w = x.shape
        size = self.window
        windows = x.view(b, c, h // size, size, w // size, size).permute(0, 2, 4, 1, 3, 5).flatten(0, 2)
        result = super().forward(windows).view(b, h // size, w // size, c, size, size)
        return result.permute(0, 3, 1, 4, 2, 5).reshape(b, c, h, w)


class OfSquareMaps(OfMaps):
    def __init__(self, channels, fmap_size, heads=4):
        super().__init__(channels, heads)
        self.bias = nn.Parameter(torch.randn(channels, fmap_size, fmap_size))

    def forward(self, x):
        return super().forward(x + self.bias)


class Hides(Plain):
    """Needs a mask, which says what is hidden."""

    def forward(self, x, mask):
        return super().forward(x, ~mask)


class Cross(nn.Module):
    def __init__(self, query_dim, *, num_heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(query_dim, num_heads, batch_first=True)

    def forward(self, query, memory):
        return self.attention(query, memory, memory)[0]


class SequenceFirst(nn.Module):
    def __init__(self, embed_dim, num_heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(embed_dim, num_heads)

    def forward(self, src):
        return self.attention(src, src, src)[0]


def precompute_freqs_cis(dim, end, theta=10000.0):
    angles = torch.outer(torch.arange(end), theta ** (-torch.arange(0, dim, 2) / dim))
    return torch.polar(torch.ones_like(angles), angles)


class Rotated(nn.Module):
    def __init__(self, dim, n_heads):
        super().__init__()
        self.n_heads = n_heads
        self.wq, self.wk, self.wv = (nn.Linear(dim, dim, bias=False) for _ in range(3))

    def rotated(self, x, freqs_cis):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * freqs_cis[:, None]).flatten(-2)

    def forward(self, x, start_pos, freqs_cis, mask):
        assert start_pos == 0
        q, k, v = (linear(x).unflatten(-1, (self.n_heads, -1)) for linear in (self.wq, self.wk, self.wv))
        q, k = self.rotated(q, freqs_cis), self.rotated(k, freqs_cis)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2)


class PassesOn(Plain):
    def forward(self, *args, **kwargs):
        return super().forward(*args, **kwargs)


def attention(query, key, value, mask=None, dropout=None):
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    return scores.softmax(-1) @ value


def of_heads(x, num_heads):
    b, n, d = x.shape
    heads = x.view(b, n, num_heads, d // num_heads).transpose(1, 2)
    return attention(heads, heads, heads)


def ignores(query, key):
    return query.softmax(-1)


class Raises(nn.Module):
    def __init__(self, dim):
        super().__init__()
        raise ValueError("[red]never[/red] |`built`|")


class Unknown(nn.Module):
    def __init__(self, gadget):
        super().__init__()
        self.turn = gadget.turn

    def forward(self, x):
        return self.turn(x)


class Prints(Plain):
    def forward(self, x):
        print("printed by the target")
        return super().forward(x)


def parsed():
    return argparse.Namespace(width=4)


namespace = SimpleNamespace(width=4)


class OfWindowTokens(Plain):
    def __init__(self, dim, num_heads, window_size):
        super().__init__(dim, num_heads, 0.0)
        self.bias = nn.Parameter(torch.randn(window_size**2, window_size**2))

    def forward(self, x):
        return super().forward(x) + (self.bias.softmax(-1) @ x)


class OfMapTokens(Plain):
    def forward(self, x, H, W):
        B, _, C = x.shape
        pooled = F.avg_pool2d(x.transpose(1, 2).reshape(B, C, H, W), 2).flatten(2).transpose(1, 2)
        return super().forward(x + pooled.mean(1, keepdim=True))


class OfSquareTokens(Plain):
    def forward(self, x):
        _B, N, _C = x.shape
        side = int(N**0.5)
        distances = torch.arange(side).expand(side, side).repeat(side, side).float()
        return super().forward(x) + torch.zeros(N, N).add_(distances).softmax(-1) @ x


class OfRows(Plain):
    def forward(self, x):
        num_rows, num_cols, batch_size, embed_dim = x.size()
        tokens = super().forward(x.permute(2, 0, 1, 3).reshape(batch_size, -1, embed_dim))
        return tokens.unflatten(1, (num_rows, num_cols)).permute(1, 2, 0, 3)


class Packed(Plain):
    def forward(self, x, cu_seqlens):
        parts = x.split((cu_seqlens[1:] - cu_seqlens[:-1]).tolist())
        return torch.cat([super(Packed, self).forward(part[None])[0] for part in parts])


def heads_behind_tokens(q, k, v):
    scores = torch.einsum("nlhd,nshd->nlsh", q, k) / q.size(-1) ** 0.5
    return torch.einsum("nlsh,nshd->nlhd", scores.softmax(2), v)


class OfOffsets(Plain):
    def forward(self, query, key, value, pos_enc):
        """Attend with a vector for each distance.

        Args:
            query: Query. (B, T_1, size)
            key: Key. (B, T_2, size)
            value: Value. (B, T_2, size)
            pos_enc: Vectors of the distances. (B, 2 * T_1 - 1, size)
        """
        return super().forward(query + key + value) + pos_enc[:, : query.size(1)]


def of_one_width(q, k, v):
    """Attend.

    Args:
        q: queries of shape (B, H, N_q, D_h)
        k: keys of shape (B, H, N_k, D_h)
        v: values of shape (B, H, N_k, D_h)
    """
    return (q @ k.mT / q.size(-1) ** 0.5).softmax(-1) @ v
