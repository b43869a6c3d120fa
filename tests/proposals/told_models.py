"""Attention that says only in its body what it takes: embeddings, kept choices, layers of another module."""

import torch
import torch.nn.functional as F
from torch import nn


class _Base(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def attend(self, x, bias=0.0):
        B, L, D = x.shape
        q, k, v = self.qkv(x).view(B, L, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return ((q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1) @ v).transpose(1, 2).reshape(B, L, D)


class OfIntervals(_Base):
    """Adds what an embedding has for the interval between two tokens."""

    def __init__(self, dim, heads, span: int):
        super().__init__(dim, heads)
        self.of_interval = nn.Embedding(span + 1, heads)

    def forward(self, x, gaps):
        B, L, _ = x.shape
        return self.attend(x, self.of_interval(gaps).view(B, L, L, self.heads).permute(0, 3, 1, 2))


class OfOneLength(_Base):
    """Accepts one length only, which has a default."""

    def __init__(self, dim, heads, seq_len=50):
        super().__init__(dim, heads)
        self.places = nn.Parameter(torch.ones(seq_len, dim))

    def forward(self, x):
        return self.attend(x + self.places)


class BeforeProjection(_Base):
    """Makes three projections of what it calls by their names."""

    def forward(self, qkv):
        return self.attend(qkv)


def of_transposed_keys(q, k, v):
    """Take the keys with their features first."""
    return (q @ k / q.shape[-1] ** 0.5).softmax(-1) @ v


class OfMethod(_Base):
    """Keeps its choice, and compares it later."""

    def __init__(self, dim, heads, method):
        super().__init__(dim, heads)
        self.method = method

    def forward(self, x):
        if self.method == "general":
            return self.attend(x)
        raise ValueError(self.method)


class OfOtherKind(_Base):
    """Is wider for one kind than for the others."""

    def __init__(self, kind, dim, heads):
        super().__init__(dim * 5 if kind == "wide" else dim, heads)

    def forward(self, x):
        return self.attend(x)


class WithLayersOf(nn.Module):
    """Takes the layers of another attention over."""

    def __init__(self, other: nn.Module):
        super().__init__()
        self.num_heads, self.width = other.num_heads, other.hidden_size
        self.query = other.query
        self.key = other.key
        self.drop = other.dropout

    def forward(self, x):
        B, L, _ = x.shape
        q, k = self.query(x).view(B, L, self.num_heads, -1).mT, self.key(x).view(B, L, self.num_heads, -1).mT
        return (self.drop((q.mT @ k).softmax(-1)) @ q.mT).reshape(B, L, self.width)


class Config:
    def __init__(self, hidden_size, num_heads, max_source_positions):
        self.hidden_size, self.num_heads, self.max_source_positions = hidden_size, num_heads, max_source_positions


class RelativePositionalEncoding(nn.Module):
    """Has a vector for each distance of two tokens, in their order."""

    def __init__(self, config: Config):
        super().__init__()
        self.largest = config.max_source_positions
        self.table = nn.Parameter(torch.randn(2 * self.largest - 1, config.hidden_size))

    def forward(self, x):
        places = torch.arange(x.shape[1])
        return self.table[places[None] - places[:, None] + self.largest - 1]


class OfRelativePositions(_Base):
    """Adds the products of queries with what belongs to each distance."""

    def __init__(self, config: Config):
        super().__init__(config.hidden_size, config.num_heads)

    def forward(self, x, position_embeddings):
        L, _, D = position_embeddings.shape
        assert x.shape[1] == L
        distances = position_embeddings.view(L, L, self.heads, D // self.heads).sum(-1)
        return self.attend(x, distances.permute(2, 0, 1))


class OfFixedContext(nn.Module):
    """Takes a context of one width, whatever its own is."""

    def __init__(self, dim):
        super().__init__()
        self.to_q, self.to_kv = nn.Linear(dim, 40), nn.Linear(77, 40)

    def forward(self, x, context):
        k = self.to_kv(context)
        return F.scaled_dot_product_attention(self.to_q(x), k, k)


class OfBank(nn.Module):
    """Reads from what has a name of its own."""

    def __init__(self, dim):
        super().__init__()
        self.to_q, self.to_k = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, query, bank):
        return F.scaled_dot_product_attention(self.to_q(query), self.to_k(bank), bank)


class OfKeys(_Base):
    """Has the sizes of a dictionary, one of which counts blocks and another words."""

    def __init__(self, params):
        super().__init__(params["dim_model"], params["num_heads"])
        width = params["dim_model"]
        self.out = nn.ModuleList(nn.Linear(width, width) for _ in range(params["num_blocks"]))
        self.words = nn.Linear(width, params["vocab_size"])

    def forward(self, x: torch.Tensor):
        x = self.attend(x)
        for layer in self.out:
            x = layer(x)
        return self.words(x)


class Deepens(_Base):
    """Has a parameter of which nothing is said, which determines no shape."""

    def __init__(self, dim, heads, zest):
        super().__init__(dim, heads)
        self.zest = zest * 3

    def forward(self, x):
        return self.attend(x) * self.zest


class OfTwoWidths(nn.Module):
    """Scores the states of an encoder against one state of a decoder, whose shapes comments have."""

    def __init__(self, enc_hidden_dim, dec_hidden_dim):
        super().__init__()
        self.energy = nn.Linear(enc_hidden_dim * 2 + dec_hidden_dim, dec_hidden_dim)
        self.score = nn.Linear(dec_hidden_dim, 1)

    def forward(self, hidden, encoder_outputs):
        # hidden: [batch_size, dec_hidden_dim]
        # encoder_outputs: [batch_size, src_len, enc_hidden_dim * 2]
        repeated = hidden.unsqueeze(1).repeat(1, encoder_outputs.shape[1], 1)
        energy = torch.tanh(self.energy(torch.cat((repeated, encoder_outputs), dim=2)))
        return (self.score(energy).softmax(1) * encoder_outputs).sum(1)


class KeptUnderAName(nn.Module):
    """Keeps a parameter under a name that says more."""

    def __init__(self, width, parts):
        super().__init__()
        self.heads = parts
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        return _Base.attend(self, x)


class OfListedWidths(nn.Module):
    """Has as many layers as a list has widths."""

    def __init__(self, mid_dims, dropout):
        super().__init__()
        pairs = range(1, len(mid_dims) - 1)
        self.hidden = nn.Sequential(*(nn.Linear(mid_dims[place - 1], mid_dims[place]) for place in pairs))
        self.last = nn.Linear(mid_dims[-2], mid_dims[-1])

    def forward(self, x, values):
        weights = self.last(self.hidden(x)).squeeze(-1).softmax(-1)
        return (weights.unsqueeze(-2) @ values).squeeze(-2)


class OfInputSize(nn.Module):
    """Has a width that is called a size of the input."""

    def __init__(self, input_size, heads):
        super().__init__()
        self.attend = _Base(input_size, heads)
        self.norm = nn.LayerNorm(input_size)

    def forward(self, x):
        return self.attend.attend(self.norm(x))


class OfLengthInCode(_Base):
    """Reshapes to a length that stands in the code."""

    def forward(self, x):
        return self.attend(x.view(-1, 40, x.shape[-1]))


class OfRepeated(_Base):
    """Repeats a row as often as a parameter says, whose name doesn't."""

    def __init__(self, dim, heads, n=40):
        super().__init__(dim, heads)
        self.n = n

    def forward(self, x, padding_mask):
        return self.attend(x, (padding_mask == 0).float().unsqueeze(1).repeat(1, self.n, 1).unsqueeze(1))


class OfState(nn.Module):
    """Scores a sequence against one state, and accepts a sequence of one step for each batch element."""

    def __init__(self, config):
        super().__init__()
        self.width = config.att_hid_size
        self.of_state = nn.Linear(config.rnn_size, self.width)
        self.score = nn.Linear(self.width, 1)

    def forward(self, h, feats):
        size = feats.numel() // feats.size(0) // feats.size(-1)
        feats = feats.view(-1, size, self.width)
        scores = self.score(torch.tanh(feats + self.of_state(h).unsqueeze(1).expand_as(feats)))
        return torch.bmm(F.softmax(scores.view(-1, size), dim=1).unsqueeze(1), feats).squeeze(1)


class OfWiderQueries(nn.Module):
    """Takes queries twice as wide as what keys come from."""

    def __init__(self, dim):
        super().__init__()
        self.to_k = nn.Linear(dim, dim + dim)

    def forward(self, q, k):
        return (q @ self.to_k(k).mT).softmax(-1) @ k


class OfStyle(nn.Module):
    """Lets a sequence, which comes first, read one vector."""

    def __init__(self, dim, heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(dim, heads)

    def forward(self, text_emb, style_emb):
        style = style_emb.unsqueeze(0).expand(text_emb.size(0), -1, -1)
        return self.attn(text_emb, style, style)[0]
