"""Attention whose arguments only the rest of its code tells: comparisons, calls, unpackings, axes."""

from enum import Enum
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn


class Kind(Enum):
    PLAIN = 0


class _Base(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def attend(self, x, bias=0.0):
        B, L, D = x.shape
        q, k, v = self.qkv(x).view(B, L, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return ((q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1) @ v).transpose(1, 2).reshape(B, L, D)


class OfKind(_Base):
    """Compares a parameter with strings, and another with members of an enumeration."""

    def __init__(self, dim, heads, attn_type, layer_type):
        super().__init__(dim, heads)
        assert attn_type in {"short", "long"}
        assert layer_type == Kind.PLAIN

    def forward(self, x):
        return self.attend(x)


class Constructed(_Base):
    """Needs an argument that only its user below gives."""

    def __init__(self, dim, heads, mystery, sparsity=None):
        super().__init__(dim, heads)
        assert mystery == 7 and sparsity is not None

    def forward(self, x):
        return self.attend(x)


class User(nn.Module):
    def __init__(self, width, count, sparse, more):
        super().__init__()
        self.first = Constructed(width, count, more.unknown)
        self.attn = Constructed(width, count, mystery=7, sparsity=more if sparse else 0)


class OfWindow(_Base):
    """Takes the tokens of a window of two sides."""

    def __init__(self, dim, window_size, num_heads):
        super().__init__(dim, num_heads)
        self.window_size = window_size
        self.bias = nn.Parameter(torch.zeros(window_size[0] * window_size[1], 1))

    def forward(self, x):
        return self.attend(x, self.bias)


class InWindows(_Base):
    """Names six axes, of which two are of a window that has a default."""

    def __init__(self, dim, heads=8, window_size=7):
        super().__init__(dim, heads)
        self.bias = nn.Parameter(torch.zeros(window_size**2, 1))

    def forward(self, x):
        batch, height, width, window_height, window_width, _ = x.shape
        return self.attend(x.reshape(batch * height * width, window_height * window_width, -1), self.bias)


class CutIntoWindows(_Base):
    """Cuts a feature map into windows, by which its sides have to be divisible."""

    def __init__(self, dim, heads, window):
        super().__init__(dim, heads)
        self.window = window
        self.bias = nn.Parameter(torch.zeros(window * window, 1))

    def forward(self, x):
        b, c, h, w = x.shape
        s = self.window
        cut = x.view(b, c, h // s, s, w // s, s).permute(0, 2, 4, 3, 5, 1)
        return self.attend(cut.reshape(-1, s * s, c), self.bias)


class OfSides(_Base):
    """Takes the sides of a feature map beside its flat tokens."""

    def __init__(self, dim, num_heads):
        super().__init__(dim, num_heads)
        self.pool = nn.Conv2d(dim, dim, 2, 2)

    def forward(self, x, H, W):
        b, _, c = x.shape
        return self.attend(self.pool(x.mT.reshape(b, c, H, W)).flatten(2).mT)


class Relative(_Base):
    """Takes embeddings of twice as many relative positions as there are tokens."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.position = nn.Linear(d_model, 1)

    def forward(self, query, key, value, pos_embedding):
        batch_size = value.size(0)
        length = (pos_embedding.size(1) + 1) // 2
        bias = self.position(pos_embedding[:, :length]).view(batch_size, 1, 1, -1)
        heads = (batch_size, -1, self.heads, query.size(-1) // self.heads)
        q, k, v = (x.view(heads).transpose(1, 2) for x in (query, key, value))
        assert pos_embedding.size(1) == 2 * length - 1 == 2 * query.size(1) - 1
        return (q @ k.mT + bias).softmax(-1) @ v


class RotatedInThree(_Base):
    """Takes cosines and sines with an axis for the batch."""

    def __init__(self, dim, heads):
        super().__init__(dim, heads)

    def forward(self, x, cos, sin):
        assert cos.dim() == sin.dim() == 3
        turned = x.view(*x.shape[:2], self.heads, -1)
        turned = turned * cos[:, :, None] + turned.roll(1, -1) * sin[:, :, None]
        return self.attend(turned.flatten(2))


class Arguments:
    def __init__(self, dim=512, n_heads=8, max_seq_len=64):
        self.dim, self.n_heads, self.max_seq_len = dim, n_heads, max_seq_len


def precompute_freqs_cis(args):
    angles = torch.ones(args.max_seq_len, args.dim // args.n_heads // 2)
    return torch.polar(angles, angles)


class RotatedByConfig(_Base):
    """Takes rotations that a function makes of the configuration."""

    def __init__(self, args: Arguments):
        super().__init__(args.dim, args.n_heads)
        self.longest = args.max_seq_len

    def forward(self, x, freqs_cis):
        pairs = torch.view_as_complex(x.view(*x.shape[:2], self.heads, -1, 2)) * freqs_cis[:, None]
        assert freqs_cis.real.max() < 1
        return self.attend(torch.view_as_real(pairs).flatten(2))


class OfGraph(nn.Module):
    """Takes nodes, and which of them are neighbours."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.value, self.a = nn.Linear(in_features, out_features), nn.Linear(out_features, 1)

    def forward(self, h, adj):
        values = torch.mm(h, self.value.weight.T)
        scores = self.a(values) + self.a(values).T
        return torch.where(adj > 0, scores, -9e15).softmax(1) @ values


class OfEdges(OfGraph):
    def forward(self, x, edge_index):
        adj = torch.zeros(len(x), len(x))
        adj[edge_index[0], edge_index[1]] = 1
        return super().forward(x, adj)


class TakesApart(OfGraph):
    def forward(self, data):
        nodes, connectivity_mask = data
        return super().forward(nodes, torch.exp(connectivity_mask))


class MayTakeApart(_Base):
    def __init__(self, dim, heads):
        super().__init__(dim, heads)

    def forward(self, x):
        if isinstance(x, tuple):
            x, _ = x
        return self.attend(x)


class Conditioned(_Base):
    """Takes a vector for each batch element beside the tokens."""

    def __init__(self, hidden_size, num_heads):
        super().__init__(hidden_size, num_heads)
        self.shift = nn.Linear(hidden_size, hidden_size)

    def forward(self, x, c):
        return self.attend(x + self.shift(c).unsqueeze(1))


class DecoderLayer(nn.Module):
    """Takes sequences first, of two lengths."""

    def __init__(self, d_model, nhead):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, nhead)

    def forward(self, tgt, memory):
        return F.relu(self.attn(tgt, memory, memory)[0])


class OfChannels(nn.Module):
    """Projects with convolutions, so that channels come before the sequence."""

    def __init__(self, channels, num_heads):
        super().__init__()
        self.heads = num_heads
        self.project = nn.ModuleList(nn.Conv1d(channels, channels, 1) for _ in range(3))

    def forward(self, x, c):
        pairs = zip(self.project, (x, c, c), strict=True)
        q, k, v = (project(one).unflatten(1, (self.heads, -1)) for project, one in pairs)
        return ((q.mT @ k).softmax(-1) @ v.mT).mT.flatten(1, 2)


class OfItems(_Base):
    """Takes sequences of items, as recommendation does."""

    def __init__(self, item_num, args):
        super().__init__(args.hidden_units, args.num_heads)
        self.items = nn.Embedding(item_num + 1, args.hidden_units)
        self.positions = nn.Embedding(args.maxlen, args.hidden_units)

    def forward(self, log_seqs):
        return self.attend(self.items(log_seqs) + self.positions.weight)


class OfBatches(OfGraph):
    """Says that its first axis is the batch, so that it takes no sequence without one."""

    def forward(self, x):
        batch_size = x.size(0)
        return super().forward(x.view(batch_size, -1), torch.ones(batch_size, batch_size))


class Choice(Enum):
    SOFT = 0
    HARD = 1


class OfChoice(_Base):
    """Is annotated with an enumeration, and with literals."""

    def __init__(self, dim, heads, choice: Choice, side: Literal["left", "right"]):
        super().__init__(dim, heads)
        assert isinstance(choice, Choice) and side in ("left", "right")

    def forward(self, x):
        return self.attend(x)


class Inherits(_Base):
    """Passes on all that it gets."""

    def __init__(self, *args, scaled=True, **kwargs):
        super().__init__(*args, **kwargs)
        self.scaled = scaled

    def forward(self, x):
        return self.attend(x)


class Activated(_Base):
    """Needs a layer that its signature says it can do without."""

    def __init__(self, dim, heads, act_layer=None):
        super().__init__(dim, heads)
        self.act = act_layer()

    def forward(self, x):
        return self.act(self.attend(x))


class OfLengths(_Base):
    """Needs the lengths of the sequences."""

    def forward(self, x, x_lens):
        padding = torch.arange(x.shape[1]) >= x_lens[:, None]
        return self.attend(x, torch.zeros(padding.shape).masked_fill(padding, -1e9)[:, None, None])


class OfResolution(_Base):
    """Has a position for each token of a square map, whose side is a default."""

    def __init__(self, dim, heads, resolution=14):
        super().__init__(dim, heads)
        self.positions = nn.Parameter(torch.zeros(resolution**2, dim))

    def forward(self, x):
        B, N, C = x.shape
        return self.attend(x + self.positions).view(B, N, C)


class OfVideos(_Base):
    """Takes videos, channels first."""

    def forward(self, x):
        N, C, T, H, W = x.size()
        return self.attend(x.flatten(2).mT).mT.view(N, C, T, H, W)


class OfKernel(_Base):
    """Needs as much padding as its kernel takes away."""

    def __init__(self, dim, heads, kernel_size, padding=0):
        super().__init__(dim, heads)
        self.padding = padding
        self.conv = nn.Conv2d(dim, dim, kernel_size, padding=padding)

    def forward(self, x):
        B, C, height, width = x.shape
        x = self.conv(x).view(B, C, height * width).mT
        return self.attend(x)


class Cached(_Base):
    """Writes to a cache, at given places."""

    def forward(self, x, write_indices, kv_cache):
        k_cache, v_cache = kv_cache
        B, L, D = x.shape
        q, k, v = self.qkv(x).view(B, L, 3, self.heads, -1).unbind(2)
        k, v = k_cache.index_copy(1, write_indices, k), v_cache.index_copy(1, write_indices, v)
        weights = torch.einsum("bqhd,bkhd->bhqk", q, k).softmax(-1)
        return torch.einsum("bhqk,bkhd->bqhd", weights, v).reshape(B, L, D)


class LastOfIds(nn.Module):
    """Takes ids with the sequence first, of which the result has the last step alone."""

    def __init__(self, vocab_size, d_model, nhead):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.attention = nn.MultiheadAttention(d_model, nhead)

    def forward(self, x):
        x = self.embedding(x)
        return self.attention(x, x, x)[0][-1]


class OfHelpers(nn.Module):
    """Names the axes of a query that a method has split into heads."""

    def __init__(self, dim, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(dim, dim) for _ in range(3))

    def _split(self, x):
        b, n, c = x.shape
        return x.reshape(b, n, self.num_heads, c // self.num_heads).transpose(1, 2)

    def forward(self, q, k, v):
        q = self._split(self.q_proj(q))
        k = self._split(self.k_proj(k))
        v = self._split(self.v_proj(v))
        _, _, _, per_head = q.shape
        return ((q @ k.mT / per_head**0.5).softmax(-1) @ v).transpose(1, 2).flatten(2)


class OfAgents(_Base):
    """Has vectors in an argument whose name may mean ids."""

    def forward(self, x, agent_tokens):
        return self.attend(torch.cat([agent_tokens, x], dim=1))


class CutsBias(_Base):
    """Takes the tokens of a window, or fewer: its bias is cut to their number."""

    def __init__(self, in_feat, head_num, window_size, causal):
        super().__init__(in_feat, head_num)
        tokens = window_size[0] * window_size[1]
        self.bias = nn.Parameter(torch.zeros(tokens, tokens, head_num))
        assert causal is False

    def forward(self, x):
        L = x.shape[1]
        bias = self.bias[:L, :L].reshape(L, L, -1)
        return self.attend(x, bias.permute(2, 0, 1))


class OfAnyRank(nn.Module):
    """Takes tensors with any number of axes, of which a comment shows four.

    Args:
        x: the vectors
    """

    def __init__(self, dim):
        super().__init__()
        self.energy = nn.Linear(dim, 1)

    def forward(self, x):
        # (B, L, num, D) -> (B, L, num, 1)
        energy = self.energy(x)
        return (energy.softmax(-2) * x).sum(-2)


class OfDocumentedRank(OfAnyRank):
    """Takes tensors with any number of axes, of which the docstring has four."""

    def forward(self, x):
        """Pool.

        Args:
            x: of shape (B, L, num, D).
        """
        return (self.energy(x).softmax(-2) * x).sum(-2)
